-- Rewrites a watermark that is as it must be.
-- KEYS  marks, ages, the counter of the release before, the counter
-- ARGV  node, last mark or nothing, next mark, the age in seconds at which one is removed, what the counter of the release before becomes
-- Returns 1 if it was as it must be, otherwise 0.
for place, wanted in ipairs({ 'hash', 'zset', 'string', 'string' }) do
  local kind = redis.call('TYPE', KEYS[place]).ok
  if kind ~= wanted and kind ~= 'none' then
    return redis.error_reply('UNWRITTEN ONCEGATE ' .. KEYS[place] .. ' is not a ' .. wanted)
  end
end
local found = redis.call('HGET', KEYS[1], ARGV[1])
if found ~= ARGV[2] and found ~= ARGV[3] and (found or ARGV[2] ~= '') then return 0 end
local now = tonumber(redis.call('TIME')[1])
if ARGV[2] == '' then
  -- A node of this release has started. One of the release before cannot count any more, and says so.
  local before = tonumber(redis.call('GET', KEYS[3]) or '0')
  if before then
    if before > tonumber(redis.call('GET', KEYS[4]) or '0') then redis.call('SET', KEYS[4], before) end
    redis.call('SET', KEYS[3], ARGV[5])
  end
  local old = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now - tonumber(ARGV[4]), 'LIMIT', 0, 256)
  for _, node in ipairs(old) do
    redis.call('HDEL', KEYS[1], node)
    redis.call('ZREM', KEYS[2], node)
  end
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
redis.call('ZADD', KEYS[2], now, ARGV[1])
return 1
