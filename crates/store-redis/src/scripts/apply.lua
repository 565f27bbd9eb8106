-- Applies a batch of conditional writes, each on its own, in order, and keeps what is told of those that are applied.
--
-- KEYS  1 the counter; 2..8 the orders of the classes; 9..13 the due kinds; 14..16 the audit trail: entries, stories, ages;
--       17, 18 the providers' references: each with its ids, and by id; 19, 20 what waits: names in order, and by id;
--       21, 22 what is unknown, by when it began: all of it, and what is parked; 23 the days on which rows were removed, which begins
--       the names of their sets of ids; 24.. the rows, one a write
-- ARGV  twelve a write: verb (i, s, r), id, version expected, row (of a removal: grace in µs), moments of the five kinds (of a
--       removal that is remembered: the bucket and the digest of its id), reference,
--       name among what waits, since when it is unknown;
--       then five an entry: number of its write (0: told in any case), id in 16 bytes, the rest of its name, moment, bytes
--
-- Returns one reply a write: 1 applied; nil refused, no row; bytes refused, the row; 0 refused, what is there is no row.
--
-- A script is not rolled back. So all that can be wrong is looked for before the first change, and each change says whether
-- it was the first: UNWRITTEN, nothing was changed; PARTIAL, something was.
local ORDERS, KINDS, ENTRIES, STORIES, AGES, REFERENCES, REFERENCE_OF = 2, 9, 14, 15, 16, 17, 18
local WAITING, WAITING_OF, DOUBTS, PARKED_DOUBTS, REMOVED, ROWS = 19, 20, 21, 22, 23, 24
local STRIDE, TOLD = 12, 5
local REFERENCED = 32
local LAYOUT, HEAD, CLASSES = 1, 11, 7
local PENDING, UNKNOWN, PARKED = 0, 4, 6
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

local count = #KEYS - ROWS + 1
local written = count * STRIDE

local function check_type(key, wanted)
  local kind = redis.call('TYPE', KEYS[key]).ok
  check(kind == wanted or kind == 'none', KEYS[key] .. ' is not a ' .. wanted)
end

local function check_entries()
  check((#ARGV - written) % TOLD == 0, 'an entry has five arguments')
  for at = written + 1, #ARGV, TOLD do
    local place = tonumber(ARGV[at])
    check(place and place >= 0 and place <= count, 'an entry is of no write')
    check(#ARGV[at + 1] == 16 and tonumber(ARGV[at + 3]), 'an entry has an id and a moment')
  end
  if #ARGV > written then
    check_type(ENTRIES, 'hash')
    check_type(STORIES, 'zset')
    check_type(AGES, 'zset')
  end
end

local time
local function now()
  time = time or redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

local function day()
  return string.format('%.0f', math.floor(now() / 86400000000))
end

local function removed_ids(at)
  return KEYS[REMOVED] .. ':' .. day() .. ':' .. ARGV[at + 4]
end

local function check_all()
  check(count >= 0 and #ARGV >= written, 'the arguments do not fit the keys')
  for at = 1, written, STRIDE do
    local verb, row = ARGV[at], ARGV[at + 3]
    check(verb == 'i' or #ARGV[at + 2] == 8, 'a version has eight bytes')
    if verb == 'r' then
      check(tonumber(row), 'a grace is a number')
      if ARGV[at + 4] ~= '' then
        check(tonumber(ARGV[at + 4]) and tonumber(ARGV[at + 5]), 'an id has a bucket and a digest')
        local kind = redis.call('TYPE', removed_ids(at)).ok
        check(kind == 'set' or kind == 'none', removed_ids(at) .. ' is not a set')
      end
    else
      check(verb == 'i' or verb == 's', 'the verb is unknown')
      check(#row > HEAD and string.byte(row, 1) == LAYOUT and string.byte(row, 10) < CLASSES, 'the row has no head')
      for moment = at + 4, at + 8 do
        check(ARGV[moment] == '' or tonumber(ARGV[moment]), 'a moment is a number')
      end
      check(ARGV[at + 11] == '' or tonumber(ARGV[at + 11]), 'a moment is a number')
    end
  end
  check(tonumber(redis.call('GET', KEYS[1]) or 0), KEYS[1] .. ' is not a number')
  for key = ORDERS, ENTRIES - 1 do check_type(key, 'zset') end
  check_type(REFERENCES, 'zset')
  check_type(REFERENCE_OF, 'hash')
  check_type(WAITING, 'zset')
  check_type(WAITING_OF, 'hash')
  check_type(DOUBTS, 'zset')
  check_type(PARKED_DOUBTS, 'zset')
  check_type(REMOVED, 'zset')
  check_entries()
end

-- nil: there is no row. false: there is something, and it is not one of ours.
local function head_of(key)
  local head = redis.pcall('GETRANGE', key, 0, HEAD - 1)
  if type(head) ~= 'string' then return false end
  if head == '' and redis.call('EXISTS', key) == 0 then return nil end
  if #head < HEAD or string.byte(head, 1) ~= LAYOUT or string.byte(head, 10) >= CLASSES then return false end
  return { version = string.sub(head, 2, 9), class = string.byte(head, 10), kinds = string.byte(head, 11) }
end

-- Of most records there is none, before and after.
local function refer(id, old, reference)
  if old and bit.band(old.kinds, REFERENCED) ~= 0 then
    local former = redis.call('HGET', KEYS[REFERENCE_OF], id)
    if former == reference then return end
    if former then change('ZREM', KEYS[REFERENCES], former .. id) end
    change('HDEL', KEYS[REFERENCE_OF], id)
  end
  if reference ~= '' then
    change('ZADD', KEYS[REFERENCES], 0, reference .. id)
    change('HSET', KEYS[REFERENCE_OF], id, reference)
  end
end

-- Of most records it is nowhere, before and after.
local function queue(id, old, name)
  if old and old.class == PENDING then
    local former = redis.call('HGET', KEYS[WAITING_OF], id)
    if former == name then return end
    if former then change('ZREM', KEYS[WAITING], former) end
    change('HDEL', KEYS[WAITING_OF], id)
  end
  if name ~= '' then
    change('ZADD', KEYS[WAITING], 0, name)
    change('HSET', KEYS[WAITING_OF], id, name)
  end
end

-- Of most records it never is.
local function doubt(id, old, class, since)
  if old and old.class == PARKED and class ~= PARKED then change('ZREM', KEYS[PARKED_DOUBTS], id) end
  if since ~= '' then
    change('ZADD', KEYS[DOUBTS], since, id)
    if class == PARKED then change('ZADD', KEYS[PARKED_DOUBTS], since, id) end
  elseif old and (old.class == UNKNOWN or old.class == PARKED) then
    change('ZREM', KEYS[DOUBTS], id)
  end
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
  refer(id, old, ARGV[at + 9])
  queue(id, old, ARGV[at + 10])
  doubt(id, old, class, ARGV[at + 11])
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
  refer(id, old, '')
  if ARGV[at + 4] ~= '' then
    change('ZADD', KEYS[REMOVED], day(), day())
    change('SADD', removed_ids(at), ARGV[at + 5])
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

-- Once: an entry is known by its record and the rest of its name.
local function tell(at)
  local id, rest = ARGV[at + 1], ARGV[at + 2]
  if change('HSETNX', KEYS[ENTRIES], id .. rest, ARGV[at + 4]) == 0 then return end
  local seq = string.format('%016.0f', change('INCR', KEYS[1]))
  change('ZADD', KEYS[STORIES], 0, id .. seq .. rest)
  change('ZADD', KEYS[AGES], ARGV[at + 3], seq .. id .. rest)
end

local function main()
  check_all()
  local replies = {}
  local entry = written + 1
  -- Entries are in the order of their writes.
  local function tell_of(place)
    while ARGV[entry] and tonumber(ARGV[entry]) == place do
      if place == 0 or replies[place] == 1 then tell(entry) end
      entry = entry + TOLD
    end
  end
  tell_of(0)
  for place = 1, count do
    replies[place] = write((place - 1) * STRIDE + 1, KEYS[ROWS + place - 1])
    tell_of(place)
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
