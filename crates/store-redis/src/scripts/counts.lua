-- How many ids each order has, in one moment.
local counts = {}
for place, key in ipairs(KEYS) do counts[place] = redis.call('ZCARD', key) end
return counts
