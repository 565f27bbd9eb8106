-- The end of page.lua and referenced.lua: the rows of what was `found`, newest first, with ARGV as they say.
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
