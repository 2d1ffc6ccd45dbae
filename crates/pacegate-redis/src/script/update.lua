-- Gives units back, or ends or renews a permit, of one key.
--
-- KEYS[1]  the cell's key.
-- ARGV[1]  the program, packed: wire.rs writes it.
-- Returns 1 if there was something to amend, 0 if not.

local REFUND, RELEASE, RENEW = 0, 1, 2

local key = KEYS[1]
local given, slack, action, cost, drawn, permit, kind, amount, _, period =
  unpack('<I8I8I8I8I8c16I8I8I8I8', ARGV[1])

set_now(given)

local function member(unit)
  return permit .. pack('>I4', unit)
end

if action == RELEASE then
  -- A key that is empty is gone, and must not be asked for while its slot is on its way elsewhere.
  local unit, left = 1, call('ZCARD', key)
  while left > 0 and call('ZREM', key, member(unit)) == 1 do unit, left = unit + 1, left - 1 end
  return unit > 1 and 1 or 0
end

if action == RENEW then
  local since = call('ZSCORE', key, member(1))
  if not since or since + period <= now then return 0 end
  local unit = 1
  while call('ZSCORE', key, member(unit)) do
    call('ZADD', key, now, member(unit))
    unit = unit + 1
  end
  call('PEXPIRE', key, math.ceil(period / 1000) + slack)
  return 1
end

-- Gives back the newest entries of a log first, as far as they still count.
local function refund_log()
  local left, length = cost, call('LLEN', key)
  while left > 0 and length > 0 do
    local instant, units, ever = unpack('<I8I8I8', call('LINDEX', key, -1))
    if instant + period <= now then return end
    if units > left then
      call('LSET', key, -1, pack('<I8I8I8', instant, units - left, ever - left))
      return
    end
    call('RPOP', key)
    left, length = left - units, length - 1
  end
end

if kind == SLIDING_LOG then
  refund_log()
  return 1
elseif kind > SLIDING_LOG then
  -- A permit is somebody's, who returns it. What was charged without one is given back, the newest first.
  local nobody, left, units = string.rep('\0', 16), cost, call('ZRANGE', key, 0, -1)
  for index = #units, 1, -1 do
    if left == 0 then break end
    if units[index]:sub(1, 16) == nobody then
      call('ZREM', key, units[index])
      left = left - 1
    end
  end
  return left < cost and 1 or 0
end

-- From a bucket of nothing nothing drains, and nothing was taken: the debt is from a limit that was here before.
if kind == TOKEN_BUCKET and amount == 0 then return 0 end

local value = call('GET', key)
if not value then return 0 end
if #value ~= 24 then return redis.error_reply('PACEGATE a foreign value is in the way') end
local before, a, b = unpack('<I8I8I8', value)
local at
at, a, b = move(kind, amount, period, before, a, b)
if kind == TOKEN_BUCKET then
  a = a - cost
  if a < 0 then a, b = 0, 0 end
elseif drawn > 0 and drawn - drawn % period ~= now - now % period then
  -- It was drawn in a window that is over.
  return 0
else
  -- From this window first: what is given back was most likely charged a moment ago.
  local from_this = math.min(cost, a)
  a, b = a - from_this, math.max(b - (cost - from_this), 0)
end
if a + b > 0 then
  write(key, slack, kind, amount, period, before, at, a, b)
else
  call('DEL', key)
end
return 1
