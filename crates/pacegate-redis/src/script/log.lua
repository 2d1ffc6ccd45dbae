-- Changes a log of admitted requests, a sorted set that another limiter changes too.
--
-- KEYS[1]  the log: a member for each unit, by its time in ticks.
-- ARGV[1]  packed by layout/batch.rs: the time given, microseconds in a tick, ticks in a period, what to do, the amount, the
--          cost and how many times it is wanted, the life of the key in milliseconds, whether a key may be made, and
--          whether a denied request sets the life anew.
-- ARGV[2]  what new members begin with.
-- Returns  the time, the units free before, how many times the cost was taken, when there is room for it once more (0
--          if there is), and when the log is empty.

local CHARGE, REFUND = 0, 1
local MOST, CHUNK = 2 ^ 53, 1000

local key, prefix = KEYS[1], ARGV[2]
local given, tick, width, action, amount, cost, times, life, create, refreshed =
  unpack('<I8I8I8I8I8I8I8I8I8I8', ARGV[1])

set_now(given)
local at = floor(now / tick)
local past = digits(at - width)

-- Also finds out whether it is a log at all.
local live = call('ZCOUNT', key, '(' .. past, '+inf')
if action == REFUND and live > 0 then call('ZPOPMAX', key, math.min(cost, live)) end
if action > REFUND then call('UNLINK', key) end
if action ~= CHARGE then return { now, 0, 0, 0, 0 } end

local function add(units)
  local words = {}
  for unit = 1, units do
    words[#words + 1] = digits(at)
    words[#words + 1] = prefix .. digits(unit)
    if #words == 2 * CHUNK or unit == units then
      call('ZADD', key, spread(words))
      words = {}
    end
  end
end

-- When the entry at an index is past, rounded up to a whole microsecond.
local function leaves(index)
  local entry = call('ZRANGE', key, index, index, 'WITHSCORES')
  return math.min(math.ceil((entry[2] + width) * tick), MOST)
end

local free, fit = amount - live, 0
if cost > 0 and free >= cost then
  if create == 0 and live == 0 then return redis.error_reply('PACEGATE memory is full') end
  fit = math.min(times, floor(free / cost))
  -- In this order: while a slot is on its way elsewhere, a key that is gone in between cannot be made again.
  add(fit * cost)
  call('ZREMRANGEBYSCORE', key, '-inf', past)
  call('PEXPIRE', key, digits(life))
elseif cost > 0 and (refreshed == 1 or call('PTTL', key) == -1) then
  -- No key stays without an end, whichever limiter created it.
  call('PEXPIRE', key, digits(life))
end

live = live + fit * cost
local missing = math.max(cost, 1) - (amount - live)
local room = 0
if missing > 0 and missing <= live and (cost == 0 or fit < times) then
  room = leaves(call('ZCARD', key) - live + missing - 1)
end
return { now, free, fit, room, live > 0 and leaves(-1) or now }
