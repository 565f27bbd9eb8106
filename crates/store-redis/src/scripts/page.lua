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
table.sort(found, function(a, b) return a.seq > b.seq end)
local page, bytes = {}, 0
for place = 1, math.min(#found, tonumber(ARGV[2])) do
  local row = redis.pcall('GET', ARGV[4] .. found[place].id)
  if type(row) ~= 'string' then row = '' end
  page[#page + 1] = found[place].seq
  page[#page + 1] = found[place].id
  page[#page + 1] = row
  bytes = bytes + #row
  if bytes >= tonumber(ARGV[3]) then break end
end
return page
