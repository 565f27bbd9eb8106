-- Rows of some classes, newest first. KEYS the classes' orders; ARGV before, count, bytes at which to stop, what row keys begin with.
-- Returns seq, id, row, seq, id, row, …; an empty row is there in name only. All classes are read in one script, so that a row which
-- moves from one to another is in exactly one of them.
local found = {}
for _, key in ipairs(KEYS) do
  local part = redis.call('ZREVRANGEBYSCORE', key, ARGV[1], '-inf', 'WITHSCORES', 'LIMIT', 0, ARGV[2])
  for place = 1, #part, 2 do
    found[#found + 1] = { id = part[place], seq = tonumber(part[place + 1]) }
  end
end
