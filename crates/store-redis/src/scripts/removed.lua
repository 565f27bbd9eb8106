-- On which day each id was last removed. KEYS the days; ARGV the first day of interest, then bucket and digest of each id.
-- Returns one day an id, in digits; '': none. The ids of a day and a bucket are a set under `{days}:{day}:{bucket}`.
local days = redis.call('ZREVRANGEBYSCORE', KEYS[1], '+inf', ARGV[1])
local found = {}
for at = 2, #ARGV, 2 do
  found[at / 2] = ''
  for _, day in ipairs(days) do
    if redis.call('SISMEMBER', KEYS[1] .. ':' .. day .. ':' .. ARGV[at], ARGV[at + 1]) == 1 then
      found[at / 2] = day
      break
    end
  end
end
return found
