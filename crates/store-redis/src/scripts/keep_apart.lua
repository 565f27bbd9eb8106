-- Keeps a message apart, unless one of its name is. KEYS order, messages; ARGV name, moment, bytes.
for place, wanted in ipairs({ 'zset', 'hash' }) do
  local kind = redis.call('TYPE', KEYS[place]).ok
  if kind ~= wanted and kind ~= 'none' then
    return redis.error_reply('UNWRITTEN ONCEGATE ' .. KEYS[place] .. ' is not a ' .. wanted)
  end
end
if redis.call('HSETNX', KEYS[2], ARGV[1], ARGV[3]) == 1 then redis.call('ZADD', KEYS[1], ARGV[2], ARGV[1]) end
return 1
