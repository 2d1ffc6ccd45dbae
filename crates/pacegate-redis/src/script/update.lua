-- Refunds units of one key, resets a bucket, or releases or renews a permit.
--
-- KEYS[1]  the cell's key.
-- KEYS[2]  if the cell returns unsettled reservations: the sorted set of them.
-- ARGV[1]  the program, packed: wire.rs writes it.
-- Returns 1 if anything changed, else 0; now, packed, if the window of a calendar period is wrong.

local REFUND, RELEASE, RENEW, RESET = 0, 1, 2, 3

local key, due_key = KEYS[1], KEYS[2]
local given, slack, action, cost, charged_at, permit, kind, amount, _, period, place =
  unpack('<I8I8I8I8I8c16I8I8I8I8', ARGV[1])

set_now(given)

local window
if kind == CALENDAR then
  kind, window = FIXED_WINDOW, read_window(ARGV[1], place)
  if window.is_wrong then return pack('<I8', now) end
end

local function member(unit)
  return permit .. pack('>I4', unit)
end

if action == RELEASE then
  -- An empty key is deleted, and must not be accessed again while its slot migrates.
  local unit, left = 1, call('ZCARD', key)
  while left > 0 and call('ZREM', key, member(unit)) == 1 do unit, left = unit + 1, left - 1 end
  return unit > 1 and 1 or 0
end

if action == RESET then
  if due_key then take_due(due_key, MAX_DUE, function() end) end
  local value = kind == TOKEN_BUCKET and amount > 0 and redis.pcall('GET', key)
  if type(value) ~= 'string' or #value ~= 44 then return call('UNLINK', key) end
  -- The count stays, so that no reservation from before the reset returns tokens that were taken after it.
  local _, a = unpack('<I8I8', value)
  local count = add_to_count(string.sub(value, 25), 0, a + 1)
  write(key, slack, kind, amount, period, 0, now, 0, 0, nil, count)
  return 1
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

-- Refunds the newest entries of a log that have not expired.
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
  if due_key then return_due_to_log(due_key, key, period) end
  -- A charge is returned from its own entry: a reservation that was written later has to keep its units.
  if charged_at > 0 then return_to_log(key, period, charged_at, cost) else refund_log() end
  return 1
elseif kind > SLIDING_LOG then
  -- Refunds leave permits alone; holders release them. Units without a permit are refunded, newest first.
  local no_permit, left, units = string.rep('\0', 16), cost, call('ZRANGE', key, 0, -1)
  for index = #units, 1, -1 do
    if left == 0 then break end
    if units[index]:sub(1, 16) == no_permit then
      call('ZREM', key, units[index])
      left = left - 1
    end
  end
  return left < cost and 1 or 0
end

-- A limit of 0 took nothing: the state is from an earlier limit.
if kind == TOKEN_BUCKET and amount == 0 then return 0 end

local value = call('GET', key)
if not value then
  if due_key then take_due(due_key, MAX_DUE, function() end) end
  return 0
end
if #value ~= 24 and #value ~= 44 then return redis.error_reply('PACEGATE the key holds a foreign value') end
local before, a, b = unpack('<I8I8I8', value)
local at, count, changed = before, #value == 44 and string.sub(value, 25) or nil, false
at, a, b = move_in(window, kind, amount, period, before, a, b)
if due_key then
  a, b, count, changed = return_due_to_state(due_key, kind, amount, period, at, a, b, count)
end
if kind == TOKEN_BUCKET then
  count = add_to_count(count, 0, math.min(cost, a + 1))
  a = a - cost
  if a < 0 then a, b = 0, 0 end
elseif charged_at > 0 then
  -- A charge is returned to its window, if that still counts.
  local counts
  a, b, count, counts = return_to_state(kind, amount, period, cost, charged_at, nil, at, a, b, count)
  if not (counts or changed) then return 0 end
else
  -- From the current window first: the units were most likely charged just before.
  local from_this = math.min(cost, a)
  a = a - from_this
  if kind == SLIDING_WINDOW then b = math.max(b - (cost - from_this), 0) end
  if kind == FIXED_WINDOW and a <= amount then b = 0 end
end
if a + b > 0 or count then
  write(key, slack, kind, amount, period, before, at, a, b, window, count)
else
  call('DEL', key)
end
return 1
