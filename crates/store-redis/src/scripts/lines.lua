-- The heads of the lines that wait. KEYS 1 what waits; ARGV after which line ('': from the first on), count.
-- Returns the name of each line's first row.
local heads, from = {}, ARGV[1]
while #heads < tonumber(ARGV[2]) do
  local after = from == '' and '-' or '(' .. from .. '\255'
  local head = redis.call('ZRANGEBYLEX', KEYS[1], after, '+', 'LIMIT', 0, 1)[1]
  if not head then break end
  heads[#heads + 1] = head
  -- A line is its operation and its scope, each with a zero byte at its end.
  from = string.match(head, '^[^%z]*%z[^%z]*%z')
  if not from then break end
end
return heads
