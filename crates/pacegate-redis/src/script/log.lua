-- Changes a log of admitted requests: a sorted set that another limiter changes too.
--
-- KEYS[1]  the log: a member for each unit, by its time in ticks.
-- ARGV[1]  packed by counter_batch.rs: the given time, microseconds of a tick, ticks of a period, the operation, the
--          amount, the cost and its repetitions, the lifetime of the key in milliseconds, whether keys may be created,
--          and whether a denied request restarts the lifetime.
-- ARGV[2]  the prefix of new members.
-- Returns  the time, the units free before, the number of repetitions taken, the time at which another one fits (0 if
--          it does now), and the time at which the log is empty.

local CHARGE, REFUND = 0, 1
local MAX_INTEGER, CHUNK = 2 ^ 53, 1000

local key, prefix = KEYS[1], ARGV[2]
local given, tick, width, action, amount, cost, times, life, create, refreshed =
  unpack('<I8I8I8I8I8I8I8I8I8I8', ARGV[1])

set_now(given)
local at = floor(now / tick)
local past = digits(at - width)

-- Fails if the key is not a sorted set.
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

-- Returns the time at which an entry expires, rounded up to a whole microsecond.
local function leaves(index)
  local entry = call('ZRANGE', key, index, index, 'WITHSCORES')
  return math.min(math.ceil((entry[2] + width) * tick), MAX_INTEGER)
end

local free, fit = amount - live, 0
if cost > 0 and free >= cost then
  if create == 0 and live == 0 then return redis.error_reply('PACEGATE memory is full') end
  fit = math.min(times, floor(free / cost))
  -- In this order: while its slot migrates, a key that was deleted cannot be created again.
  add(fit * cost)
  call('ZREMRANGEBYSCORE', key, '-inf', past)
  call('PEXPIRE', key, digits(life))
elseif cost > 0 and (refreshed == 1 or call('PTTL', key) == -1) then
  -- Every key gets an expiry, even if another limiter created it.
  call('PEXPIRE', key, digits(life))
end

live = live + fit * cost
local missing = math.max(cost, 1) - (amount - live)
local room = 0
if missing > 0 and missing <= live and (cost == 0 or fit < times) then
  room = leaves(call('ZCARD', key) - live + missing - 1)
end
return { now, free, fit, room, live > 0 and leaves(-1) or now }
