-- The last entries of one record, the newest first. KEYS stories, entries; ARGV id in 16 bytes, the end of the range, count.
-- Returns member, bytes, member, bytes, …; a member is id, order of arrival, and the rest of the entry's name.
local members = redis.call('ZREVRANGEBYLEX', KEYS[1], ARGV[2], '[' .. ARGV[1], 'LIMIT', 0, ARGV[3])
local story = {}
for _, member in ipairs(members) do
  local bytes = redis.call('HGET', KEYS[2], ARGV[1] .. string.sub(member, 33))
  story[#story + 1] = member
  story[#story + 1] = bytes or ''
end
return story
