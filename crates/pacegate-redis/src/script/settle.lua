-- Settles reservations: returns units that were not used to where they were charged, or records those beyond the
-- estimate as debt.
--
-- KEYS     for each reservation: the key that shows that it is open, then those of its cells.
-- ARGV[1]  the program, packed: wire.rs writes it.
-- Returns  for each reservation 1 if it was open, else 0; now, packed, if the window of a calendar period is wrong.

local program = ARGV[1]
local given, slack, count, place = unpack('<I8I8I8', program)
set_now(given)

-- Returns units to the entry of a log that was written at `charged`. The totals of later entries change too.
local function return_to_log(key, period, charged, units)
  local length = redis.pcall('LLEN', key)
  if type(length) == 'table' or length == 0 or charged + period <= now then return end
  local last = length - 1
  local index = search(key, 0, last, function(instant) return instant >= charged end)
  local instant, had = entry(key, index)
  if instant ~= charged then return end
  local back, shift = math.min(units, had), had <= units and 1 or 0
  for target = index, last - shift do
    local at, amount, ever = entry(key, target + shift)
    if target == index and shift == 0 then amount = amount - back end
    call('LSET', key, target, pack('<I8I8I8', at, amount, ever - back))
  end
  if shift == 1 then call('RPOP', key) end
end

-- Appends units to a log, beyond its limit if `excess` allows it.
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
  if units > amount - live then
    units = excess > 0 and record(SLIDING_LOG, excess, amount - live, units, 0, 0) or 0
  end
  if units == 0 then return end
  if length > 0 and at >= now then
    call('LSET', key, -1, pack('<I8I8I8', at, last_units + units, ever + units))
  else
    call('RPUSH', key, pack('<I8I8I8', now, units, ever + units))
  end
  call('PEXPIRE', key, math.ceil(period / 1000) + slack)
end

-- Charges units to a state that was moved to now.
local function charge_state(key, kind, amount, capacity, period, excess, units, before, at, a, b, window)
  local free = free_units(kind, amount, capacity, period, at, a, b)
  if units > free then
    if excess == 0 then return end
    units, a, b = record(kind, excess, free, units, a, b)
  end
  if units > 0 then write(key, slack, kind, amount, period, before, at, a + units, b, window) end
end

-- Returns units to a state that was moved to now. `owed`: the units of the charge that a bucket has not refilled yet.
local function return_to_state(key, kind, amount, period, charged, owed, units, before, at, a, b, window)
  if kind == TOKEN_BUCKET then
    if amount == 0 then return end
    a = a - math.min(units, owed)
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
    write(key, slack, kind, amount, period, before, at, a, b, window)
  else
    call('DEL', key)
  end
end

-- Changes one cell by the difference between the reserved units and the used ones. `a` and `b` are its state just after
-- the charge.
local function settle(key, cell, units, charged, a, b)
  if units == 0 then return end
  local kind, amount, capacity, period = cell.kind, cell.amount, cell.capacity, cell.period
  local excess, window = cell.excess, cell.window
  if kind == SLIDING_LOG then
    if units > 0 then return return_to_log(key, period, charged, units) end
    return charge_log(key, amount, period, excess, -units)
  end
  local value = redis.pcall('GET', key)
  if type(value) == 'table' or value and #value ~= 24 or not value and units > 0 then return end
  local owed = kind == TOKEN_BUCKET and select(2, move(kind, amount, period, charged, a, b))
  local before, at
  before, a, b = unpack('<I8I8I8', value or NOTHING)
  at, a, b = move_in(window, kind, amount, period, before, a, b)
  if units > 0 then
    return return_to_state(key, kind, amount, period, charged, owed, units, before, at, a, b, window)
  end
  charge_state(key, kind, amount, capacity, period, excess, -units, before, at, a, b, window)
end

-- Reads everything before the first change, because a window may be wrong.
local settlements = {}
for index = 1, count do
  local settlement, size = {}, 0
  settlement.actual, size, place = unpack('<I8I8', program, place)
  for number = 1, size do
    local cell = {}
    cell.excess, cell.kind, cell.amount, cell.capacity, cell.period, place = unpack('<I8I8I8I8I8', program, place)
    if cell.kind == CALENDAR then
      cell.kind, cell.window, place = FIXED_WINDOW, read_window(program, place)
      if cell.window.is_wrong then return pack('<I8', now) end
    end
    settlement[number] = cell
  end
  settlements[index] = settlement
end

local replies, next_key = {}, 1
for index, settlement in ipairs(settlements) do
  local value = call('GET', KEYS[next_key])
  local charged, expires = unpack('<I8I8', value or NOTHING)
  local open = expires > now and #value == 16 + 24 * #settlement
  -- First of all: if anything below fails, units stay charged.
  if value then call('DEL', KEYS[next_key]) end
  for number, cell in ipairs(open and settlement or {}) do
    local units, a, b = unpack('<I8I8I8', value, 24 * number - 7)
    if units > 0 then
      settle(KEYS[next_key + number], cell, units - 1 - settlement.actual, charged, a, b)
    end
  end
  next_key = next_key + 1 + #settlement
  replies[index] = open and 1 or 0
end
return replies
