-- How much there is, and since when. KEYS 1 what is due to be run, or what is unknown. Returns the count, and the first moment.
local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
return { redis.call('ZCARD', KEYS[1]), first[2] and tonumber(first[2]) }
