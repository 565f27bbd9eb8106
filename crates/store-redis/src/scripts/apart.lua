-- Messages that are kept apart, the oldest first. KEYS order, messages; ARGV first moment, offset, count, bytes at which to stop.
-- Returns name, bytes, name, bytes, …
local names = redis.call('ZRANGEBYSCORE', KEYS[1], ARGV[1], '+inf', 'LIMIT', ARGV[2], ARGV[3])
local found, bytes = {}, 0
for _, name in ipairs(names) do
  local message = redis.call('HGET', KEYS[2], name) or ''
  found[#found + 1] = name
  found[#found + 1] = message
  bytes = bytes + #message
  if bytes >= tonumber(ARGV[4]) then break end
end
return found
