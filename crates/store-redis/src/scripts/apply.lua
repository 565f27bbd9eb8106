-- Applies a batch of conditional writes, each on its own, in order.
--
-- KEYS  1 the counter; 2..8 the orders of the classes; 9..13 the due kinds; 14.. the rows, one a write
-- ARGV  nine a write: verb (i, s, r), id, version expected, row (of a removal: grace in µs), moments of the five kinds
--
-- Returns one reply a write: 1 applied; nil refused, no row; bytes refused, the row; 0 refused, what is there is no row.
--
-- A script is not rolled back. So all that can be wrong is looked for before the first change, and each change says whether
-- it was the first: UNWRITTEN, nothing was changed; PARTIAL, something was.
local ORDERS, KINDS, ROWS, STRIDE = 2, 9, 14, 9
local LAYOUT, HEAD, CLASSES = 1, 11, 7
local SETTLED = { [2] = true, [3] = true, [5] = true }
local EXPIRED = KINDS + 4

local changed = false

local function check(good, problem)
  if not good then error('UNWRITTEN ONCEGATE ' .. problem, 0) end
end

local function change(...)
  local reply = redis.pcall(...)
  if type(reply) == 'table' and reply.err then
    error((changed and 'PARTIAL ' or 'UNWRITTEN ') .. reply.err, 0)
  end
  changed = true
  return reply
end

local function check_all()
  local count = #KEYS - ROWS + 1
  check(count >= 0 and #ARGV == count * STRIDE, 'the arguments do not fit the keys')
  for at = 1, #ARGV, STRIDE do
    local verb, row = ARGV[at], ARGV[at + 3]
    check(verb == 'i' or #ARGV[at + 2] == 8, 'a version has eight bytes')
    if verb == 'r' then
      check(tonumber(row), 'a grace is a number')
    else
      check(verb == 'i' or verb == 's', 'the verb is unknown')
      check(#row > HEAD and string.byte(row, 1) == LAYOUT and string.byte(row, 10) < CLASSES, 'the row has no head')
      for moment = at + 4, at + 8 do
        check(ARGV[moment] == '' or tonumber(ARGV[moment]), 'a moment is a number')
      end
    end
  end
  check(tonumber(redis.call('GET', KEYS[1]) or 0), KEYS[1] .. ' is not a number')
  for key = ORDERS, ROWS - 1 do
    local kind = redis.call('TYPE', KEYS[key]).ok
    check(kind == 'zset' or kind == 'none', KEYS[key] .. ' is not a sorted set')
  end
end

-- nil: there is no row. false: there is something, and it is not one of ours.
local function head_of(key)
  local head = redis.pcall('GETRANGE', key, 0, HEAD - 1)
  if type(head) ~= 'string' then return false end
  if head == '' and redis.call('EXISTS', key) == 0 then return nil end
  if #head < HEAD or string.byte(head, 1) ~= LAYOUT or string.byte(head, 10) >= CLASSES then return false end
  return { version = string.sub(head, 2, 9), class = string.byte(head, 10), kinds = string.byte(head, 11) }
end

local function put(at, key, old)
  local id, row = ARGV[at + 1], ARGV[at + 3]
  change('SET', key, row)
  local class = string.byte(row, 10)
  if not old or old.class ~= class then
    local seq = old and redis.call('ZSCORE', KEYS[ORDERS + old.class], id)
    if not seq then seq = change('INCR', KEYS[1]) end
    if old then change('ZREM', KEYS[ORDERS + old.class], id) end
    change('ZADD', KEYS[ORDERS + class], seq, id)
  end
  for kind = 0, 4 do
    local moment = ARGV[at + 4 + kind]
    if moment ~= '' then
      change('ZADD', KEYS[KINDS + kind], moment, id)
    elseif old and bit.band(old.kinds, bit.lshift(1, kind)) ~= 0 then
      change('ZREM', KEYS[KINDS + kind], id)
    end
  end
end

local time
local function now()
  time = time or redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

local function is_removable(at, old)
  if not SETTLED[old.class] then return false end
  local ends = redis.call('ZSCORE', KEYS[EXPIRED], ARGV[at + 1])
  return ends and tonumber(ends) <= now() - tonumber(ARGV[at + 3])
end

local function remove(at, key, old)
  local id = ARGV[at + 1]
  change('DEL', key)
  change('ZREM', KEYS[ORDERS + old.class], id)
  for kind = 0, 4 do
    if bit.band(old.kinds, bit.lshift(1, kind)) ~= 0 then change('ZREM', KEYS[KINDS + kind], id) end
  end
end

local function write(at, key)
  local verb, old = ARGV[at], head_of(key)
  if old == false then
    local bytes = redis.pcall('GET', key)
    return type(bytes) == 'string' and bytes or 0
  end
  if verb == 'i' then
    if not old then
      put(at, key, nil)
      return 1
    end
  elseif old and old.version == ARGV[at + 2] then
    if verb == 's' then
      put(at, key, old)
      return 1
    elseif is_removable(at, old) then
      remove(at, key, old)
      return 1
    end
  end
  return redis.call('GET', key)
end

local function main()
  check_all()
  local replies = {}
  for place = 0, #KEYS - ROWS do
    replies[place + 1] = write(place * STRIDE + 1, KEYS[ROWS + place])
  end
  return replies
end

local ok, result = pcall(main)
if ok then return result end
if type(result) == 'table' then result = result.err end
result = tostring(result)
if not (string.find(result, '^UNWRITTEN ') or string.find(result, '^PARTIAL ')) then
  result = (changed and 'PARTIAL ' or 'UNWRITTEN ') .. result
end
return redis.error_reply(result)
