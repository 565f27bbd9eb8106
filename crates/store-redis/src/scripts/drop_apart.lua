-- Lets go of messages that are kept apart. KEYS order, messages; ARGV their names. The order goes last, and finds them until then.
for _, name in ipairs(ARGV) do
  redis.call('HDEL', KEYS[2], name)
  redis.call('ZREM', KEYS[1], name)
end
return #ARGV
