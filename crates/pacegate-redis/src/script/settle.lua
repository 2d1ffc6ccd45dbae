-- Settles reservations: returns units that were not used to where they were charged, or records those beyond the
-- estimate as debt. Or ends reservations whose time to live is over, and returns the units of some of their cells.
--
-- KEYS     for each reservation: the key that shows that it is open, those of its cells, and the count of returned
--          tokens of each of its buckets.
-- ARGV[1]  the program, packed: wire.rs writes it.
-- Returns  now, and for each reservation: 1 if it was open, else 0; then for each of its cells the reserved units plus
--          1, 0 if it is not part of the reservation, and the units that were free before those beyond the reserved
--          ones were charged. Only now, packed, if the window of a calendar period is wrong.

-- In place of the used units: ends the reservation. A cell is returned if its excess is not 0.
local UNSETTLED = 9007199254740992

local program = ARGV[1]
local given, slack, count, place = unpack('<I8I8I8', program)
set_now(given)

-- Returns the entries `from` to `to` of a log with `more` added to their totals.
local function changed_totals(key, from, to, more)
  local entries = call('LRANGE', key, from, to)
  for index, value in ipairs(entries) do
    local instant, units, ever = unpack('<I8I8I8', value)
    entries[index] = pack('<I8I8I8', instant, units, ever + more)
  end
  return entries
end

-- Adds entries to the end of a log, or to its start, in portions that fit on the stack of Lua.
local function push(key, entries, is_start)
  for from = 1, #entries, 1000 do
    local to = math.min(from + 999, #entries)
    if is_start then
      call('LPUSH', key, spread(entries, from, to))
    else
      call('RPUSH', key, spread(entries, from, to))
    end
  end
end

local function reverse(entries)
  local reversed, size = {}, #entries
  for index = 1, size do reversed[index] = entries[size + 1 - index] end
  return reversed
end

-- Returns units to the entry of a log that was written at `charged`. Only the differences of totals matter: those of
-- the later entries become smaller, or those of the earlier ones larger, whichever are fewer. The log never gets empty
-- in between, because a deleted key cannot be created again while its slot migrates.
local function return_to_log(key, period, charged, units)
  local length = redis.pcall('LLEN', key)
  if type(length) == 'table' or length == 0 or charged + period <= now then return end
  local last = length - 1
  local index = search(key, 0, last, function(instant) return instant >= charged end)
  local instant, had, ever = entry(key, index)
  if instant ~= charged then return end
  local back, is_empty = math.min(units, had), had <= units
  if last - index <= index then
    local later = last > index and changed_totals(key, index + 1, last, -back) or {}
    if not is_empty then call('LSET', key, index, pack('<I8I8I8', instant, had - back, ever - back)) end
    if is_empty and index == 0 then return call('DEL', key) end
    if is_empty or #later > 0 then call('LTRIM', key, 0, is_empty and index - 1 or index) end
    push(key, later)
  else
    local earlier = index > 0 and changed_totals(key, 0, index - 1, back) or {}
    if not is_empty then call('LSET', key, index, pack('<I8I8I8', instant, had - back, ever)) end
    call('LTRIM', key, is_empty and index + 1 or index, -1)
    push(key, reverse(earlier), true)
  end
end

-- Appends units to a log, beyond its limit if `excess` allows it. Returns the units that were free before.
local function charge_log(key, amount, period, excess, units)
  local length = redis.pcall('LLEN', key)
  if type(length) == 'table' then return end
  local live, at, last_units, ever = 0, 0, 0, 0
  if length > 0 then
    at, last_units, ever = entry(key, -1)
    if at + period > now then
      local first = search(key, 0, length - 1, function(instant) return instant + period > now end)
      local _, first_units, first_ever = entry(key, first)
      live = ever - first_ever + first_units
    end
  end
  local free = amount - live
  if units > free then
    units = excess > 0 and record(SLIDING_LOG, amount, excess, free, units, 0) or 0
  end
  if units == 0 then return free end
  if length > 0 and at >= now then
    call('LSET', key, -1, pack('<I8I8I8', at, last_units + units, ever + units))
  else
    call('RPUSH', key, pack('<I8I8I8', now, units, ever + units))
  end
  call('PEXPIRE', key, math.ceil(period / 1000) + slack)
  return free
end

-- The values of cells, which are read once and written at the end; false if there is none. Those that have changed, with
-- their expiry, 0 if it stays as it was, or false to delete the key.
local values, changed, expiries = {}, {}, {}

local function change(key, value, expiry)
  if expiries[key] == nil then changed[#changed + 1] = key end
  values[key], expiries[key] = value, expiry
end

local function write_later(key, kind, amount, period, before, at, a, b, window)
  local value, expiry = pack_state(slack, kind, amount, period, before, at, a, b, window)
  change(key, value, expiry or expiries[key] or 0)
end

local function write_changed()
  for _, key in ipairs(changed) do
    local expiry = expiries[key]
    if not expiry then
      call('DEL', key)
    elseif expiry == 0 then
      call('SET', key, values[key], 'KEEPTTL')
    else
      call('SET', key, values[key], 'PX', expiry)
    end
  end
end

-- Charges units to a state that was moved to now. Returns the units that were free before.
local function charge_state(key, kind, amount, capacity, period, excess, units, before, at, a, b, window)
  local free = free_units(kind, amount, capacity, period, at, a, b)
  if units > free then
    if excess == 0 then return free end
    units, b = record(kind, amount, excess, free, units, b)
  end
  if units > 0 then write_later(key, kind, amount, period, before, at, a + units, b, window) end
  return free
end

-- Returns the tokens of a charge of `units` that are certainly missing: see `owed` in token_bucket.rs. `a` and `b` are
-- the state just after the charge, with all tokens that were returned before added to `a`, of which refunds returned
-- `before`.
local function owed_tokens(count, amount, period, charged, units, a, b, before)
  local since, settled, refunded = read_returns(count)
  -- A later count does not know all that was returned.
  if amount == 0 or not since or since > charged then return 0 end
  local in_order = select(2, move(TOKEN_BUCKET, amount, period, charged, a, b)) - settled - refunded
  local own = select(2, move(TOKEN_BUCKET, amount, period, charged, units, 0)) - (refunded - before)
  return math.max(in_order, own, 0)
end

-- Returns units to a state that was moved to now.
local function return_to_state(key, kind, amount, period, charged, units, before, at, a, b, window)
  if kind == TOKEN_BUCKET then
    a = a - units
    if a < 0 then a, b = 0, 0 end
  elseif charged >= at then
    a = math.max(a - units, 0)
    if kind == FIXED_WINDOW and a <= amount then b = 0 end
  elseif kind == SLIDING_WINDOW and charged >= at - period then
    b = math.max(b - units, 0)
  else
    return
  end
  if a + b > 0 then
    write_later(key, kind, amount, period, before, at, a, b, window)
  else
    change(key, false, false)
  end
end

-- Changes one cell by the difference between the reserved units and the used ones. `a`, `b` and `refunded` are its
-- state just after the charge. `count` is the key of a bucket's count of returned tokens. Returns the units that were
-- free before a charge.
local function settle(key, count, cell, reserved, actual, charged, a, b, refunded)
  local units = reserved - actual
  if units == 0 then return end
  local kind, amount, capacity, period = cell.kind, cell.amount, cell.capacity, cell.period
  local excess, window = cell.excess, cell.window
  if kind == SLIDING_LOG then
    if units > 0 then return return_to_log(key, period, charged, units) end
    return charge_log(key, amount, period, excess, -units)
  end
  local value = values[key]
  -- Not nil as read with other keys: the key may have a foreign type.
  if value == nil then value = redis.pcall('GET', key) end
  if type(value) == 'table' or value and #value ~= 24 or not value and units > 0 then return end
  if kind == TOKEN_BUCKET and units > 0 then
    units = math.min(units, owed_tokens(count, amount, period, charged, reserved, a, b, refunded))
    count_returned(count, units, 0)
  end
  local before, at
  before, a, b = unpack('<I8I8I8', value or NOTHING)
  at, a, b = move_in(window, kind, amount, period, before, a, b)
  if reserved > actual then
    return return_to_state(key, kind, amount, period, charged, units, before, at, a, b, window)
  end
  return charge_state(key, kind, amount, capacity, period, excess, -units, before, at, a, b, window)
end

-- Reads everything before the first change, because a window may be wrong.
local settlements = {}
for index = 1, count do
  local settlement, size = { buckets = 0 }, 0
  settlement.actual, size, place = unpack('<I8I8', program, place)
  for number = 1, size do
    local cell = {}
    cell.excess, cell.kind, cell.amount, cell.capacity, cell.period, place = unpack('<I8I8I8I8I8', program, place)
    if cell.kind == CALENDAR then
      cell.kind, cell.window, place = FIXED_WINDOW, read_window(program, place)
      if cell.window.is_wrong then return pack('<I8', now) end
    end
    if cell.kind == TOKEN_BUCKET then settlement.buckets = settlement.buckets + 1 end
    settlement[number] = cell
  end
  settlements[index] = settlement
end

-- First of all, ends all reservations that are open: if anything below fails, units stay charged. An expired reservation
-- is kept for a while, so that it can be ended.
local keys, next_key = {}, 1
for index, settlement in ipairs(settlements) do
  keys[index], settlement.key = KEYS[next_key], next_key
  next_key = next_key + 1 + #settlement + settlement.buckets
end
local ended, is_ended, cell_keys = {}, {}, {}
for index, value in ipairs(call('MGET', spread(keys))) do
  local settlement, key = settlements[index], keys[index]
  local _, expires = unpack('<I8I8', value and #value >= 16 and value or NOTHING)
  settlement.is_unsettled = settlement.actual == UNSETTLED
  local is_due = (expires > now) ~= settlement.is_unsettled
  if value and is_due and #value == 16 + 32 * #settlement and not is_ended[key] then
    settlement.value, is_ended[key] = value, true
    ended[#ended + 1] = key
    for number, cell in ipairs(settlement) do
      if cell.kind ~= SLIDING_LOG then cell_keys[#cell_keys + 1] = KEYS[settlement.key + number] end
    end
  end
end
if #ended > 0 then call('DEL', spread(ended)) end
if #cell_keys > 0 then
  for index, value in ipairs(call('MGET', spread(cell_keys))) do
    if value then values[cell_keys[index]] = value end
  end
end

local replies = { now }
for _, settlement in ipairs(settlements) do
  local value = settlement.value
  replies[#replies + 1] = value and 1 or 0
  local charged, count_key = value and unpack('<I8', value), settlement.key + #settlement
  for number, cell in ipairs(settlement) do
    if cell.kind == TOKEN_BUCKET then count_key = count_key + 1 end
    local units, a, b, refunded, actual = 0, 0, 0, 0, settlement.actual
    if value then units, a, b, refunded = unpack('<I8I8I8I8', value, 32 * number - 15) end
    if settlement.is_unsettled then actual = cell.excess > 0 and 0 or units - 1 end
    local key = KEYS[settlement.key + number]
    local free = units > 0
      and settle(key, KEYS[count_key], cell, units - 1, actual, charged, a, b, refunded)
    replies[#replies + 1], replies[#replies + 2] = units, free or 0
  end
end
write_changed()
return replies
