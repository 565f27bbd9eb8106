-- Rows that a provider has one reference for, newest first: few. KEYS the references' ids, then the classes' orders; ARGV before, count,
-- bytes at which to stop, what row keys begin with, reference. Returns seq, id, row, … as page.lua.
local members = redis.call('ZRANGEBYLEX', KEYS[1], '[' .. ARGV[5], '(' .. ARGV[5] .. '\255')
local exclusive = string.sub(ARGV[1], 1, 1) == '('
local before = tonumber(exclusive and string.sub(ARGV[1], 2) or math.huge)
local found = {}
for _, member in ipairs(members) do
  local id = string.sub(member, #ARGV[5] + 1)
  for key = 2, #KEYS do
    local seq = tonumber(redis.call('ZSCORE', KEYS[key], id) or nil)
    if seq and seq < before then found[#found + 1] = { id = id, seq = seq } end
  end
end
