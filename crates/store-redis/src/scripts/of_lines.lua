-- The first rows of lines. KEYS 1 what waits; ARGV the first moment that has not come, as names have it, count, then the lines.
-- Returns the names of each line's rows.
local lines = {}
for place = 3, #ARGV do
  local from, to = '[' .. ARGV[place], '(' .. ARGV[place] .. ARGV[1]
  lines[#lines + 1] = redis.call('ZRANGEBYLEX', KEYS[1], from, to, 'LIMIT', 0, ARGV[2])
end
return lines
