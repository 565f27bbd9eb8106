-- Rows that are due, the longest first. KEYS 1 the kind; ARGV now, offset, count, bytes at which to stop, what row keys begin with, from when.
-- Returns id, row, id, row, …; an empty row is there in name only.
local ids = redis.call('ZRANGEBYSCORE', KEYS[1], ARGV[6], ARGV[1], 'LIMIT', ARGV[2], ARGV[3])
local rows, bytes = {}, 0
for _, id in ipairs(ids) do
  local row = redis.pcall('GET', ARGV[5] .. id)
  if type(row) ~= 'string' then row = '' end
  rows[#rows + 1] = id
  rows[#rows + 1] = row
  bytes = bytes + #row
  if bytes >= tonumber(ARGV[4]) then break end
end
return rows
