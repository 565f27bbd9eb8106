-- Forgets what was removed on the oldest day before this one. KEYS the days; ARGV the day, the number of buckets. Returns how many ids.
-- A day goes last: what ends half-way is found again.
local day = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '(' .. ARGV[1], 'LIMIT', 0, 1)[1]
if not day then return 0 end
local count = 0
for bucket = 0, ARGV[2] - 1 do
  local key = KEYS[1] .. ':' .. day .. ':' .. bucket
  local ids = redis.call('SCARD', key)
  if ids > 0 then
    count = count + ids
    redis.call('UNLINK', key)
  end
end
redis.call('ZREM', KEYS[1], day)
return count
