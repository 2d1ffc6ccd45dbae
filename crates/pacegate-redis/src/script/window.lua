-- Changes the counter of one window, whose key another limiter changes too.
--
-- KEYS[1]  the counter.
-- KEYS[2]  the counter of the previous window, for layouts that count it too.
-- ARGV[1]  packed by counter_batch.rs: the given time, start and length of the window, the operation and its units, the
--          lifetime of the key in milliseconds, whether each charge restarts it, and whether keys may be created.
-- Returns  the time, the count before, and that of the previous window if there is KEYS[2]. Only the time if it is not
--          in the window; then nothing was changed.

local CHARGE, REFUND = 0, 1
-- Counts are capped here: larger ones have no exact double.
local MAX_INTEGER = 2 ^ 53

local key = KEYS[1]
local given, start, period, action, units, life, refreshed, create = unpack('<I8I8I8I8I8I8I8I8', ARGV[1])

set_now(given)
if now < start or now >= start + period then return { now } end

local function bounded(count)
  return math.max(math.min(count, MAX_INTEGER), -MAX_INTEGER)
end

-- The value of a counter, or nil. An error reply if it is not a number.
local function read(name)
  local value = call('GET', name)
  if not value then return nil end
  if not string.find(value, '^-?%d+$') then return nil, redis.error_reply('PACEGATE the key holds a foreign value') end
  return tonumber(value)
end

local previous
if KEYS[2] then
  local count, foreign = read(KEYS[2])
  if foreign then return foreign end
  previous = bounded(count or 0)
end

local function answer(count)
  return { now, bounded(count), previous }
end

if action == CHARGE and units > 0 then
  if create == 0 and call('EXISTS', key) == 0 then return redis.error_reply('PACEGATE memory is full') end
  local count = call('INCRBY', key, digits(units))
  -- Every key gets an expiry, even if another limiter created it.
  if refreshed == 1 or call('PTTL', key) < 0 then call('PEXPIRE', key, digits(life)) end
  return answer(count - units)
end

local count, foreign = read(key)
if foreign then return foreign end

if action > REFUND then
  -- A reset. A missing key is left alone.
  if previous then call('UNLINK', KEYS[2]) end
  if count then call('UNLINK', key) end
elseif action == REFUND and count then
  local back = math.min(units, count)
  if back > 0 then call('DECRBY', key, digits(back)) end
end
return answer(count or 0)
