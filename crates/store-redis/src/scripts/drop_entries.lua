-- Drops the oldest entries. KEYS ages, stories, entries; ARGV before, count. Returns how many there were.
-- An age goes last: what ends half-way is found again.
local ages = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '(' .. ARGV[1], 'LIMIT', 0, ARGV[2])
for _, member in ipairs(ages) do
  local seq, id, rest = string.sub(member, 1, 16), string.sub(member, 17, 32), string.sub(member, 33)
  redis.call('HDEL', KEYS[3], id .. rest)
  redis.call('ZREM', KEYS[2], id .. seq .. rest)
  redis.call('ZREM', KEYS[1], member)
end
return #ages
