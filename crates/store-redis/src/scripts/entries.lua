-- A page of the trail of all records, oldest first. KEYS ages, entries; ARGV moment and order of arrival behind which it begins, end, count.
-- Returns member, moment, bytes, …; a member is order of arrival, id, and the rest of the entry's name.
--
-- Members of one moment are in the order of their arrival. Ranks of entries that are dropped meanwhile change, so the place is looked for.
local at, arrival = ARGV[1], ARGV[2]
local low = redis.call('ZCOUNT', KEYS[1], '-inf', '(' .. at)
local high = redis.call('ZCOUNT', KEYS[1], '-inf', at)
while low < high do
  local middle = math.floor((low + high) / 2)
  local member = redis.call('ZRANGE', KEYS[1], middle, middle)[1]
  if string.sub(member, 1, 16) <= arrival then low = middle + 1 else high = middle end
end
local page = {}
local found = redis.call('ZRANGE', KEYS[1], low, low + ARGV[4] - 1, 'WITHSCORES')
for place = 1, #found, 2 do
  local member = found[place]
  local moment = string.format('%.0f', found[place + 1])
  if tonumber(moment) >= tonumber(ARGV[3]) then break end
  page[#page + 1] = member
  page[#page + 1] = moment
  page[#page + 1] = redis.call('HGET', KEYS[2], string.sub(member, 17)) or ''
end
return page
