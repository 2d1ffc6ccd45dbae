-- Changes the counter of one window, whose key another limiter changes too.
--
-- KEYS[1]  the counter.
-- ARGV[1]  packed by tally.rs: the time given, the start of the window, its length, what to do and how many units, the
--          life of the key in milliseconds, whether it is set anew each time, and whether a key may be made.
-- Returns  the time, and the count as it was before; the time alone if it is not in that window, and nothing was done.

local CHARGE, REFUND = 0, 1
-- Counts beyond this mean the same, and have no exact double.
local MOST = 2 ^ 53

local key = KEYS[1]
local given, start, period, action, units, life, refreshed, create = unpack('<I8I8I8I8I8I8I8I8', ARGV[1])

set_now(given)
if now < start or now >= start + period then return { now } end

local function answer(count)
  return { now, math.max(math.min(count, MOST), -MOST) }
end

if action == CHARGE and units > 0 then
  if create == 0 and call('EXISTS', key) == 0 then return redis.error_reply('PACEGATE memory is full') end
  local count = call('INCRBY', key, digits(units))
  -- None has no end, whoever made it.
  if refreshed == 1 or call('PTTL', key) < 0 then call('PEXPIRE', key, digits(life)) end
  return answer(count - units)
end

local value = call('GET', key)
if not value then return answer(0) end
if not string.find(value, '^-?%d+$') then return redis.error_reply('PACEGATE a foreign value is in the way') end
local count = tonumber(value)

if action == REFUND then
  local back = math.min(units, count)
  if back > 0 then call('DECRBY', key, digits(back)) end
elseif action > REFUND then
  call('UNLINK', key)
end
return answer(count)
