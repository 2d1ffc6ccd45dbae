-- Settles reservations: returns units that were not used to where they were charged, or records those beyond the
-- estimate as debt.
--
-- KEYS     for each reservation: the key that shows that it is open, those of its cells, and one for each cell that
--          returns unsettled reservations.
-- ARGV[1]  the program, packed: wire.rs writes it.
-- Returns  now, and for each reservation: 1 if it was open, else 0; then for each of its cells the reserved units plus
--          1, 0 if it is not part of the reservation, and the units that were free before those beyond the reserved
--          ones were charged. Only now, packed, if the window of a calendar period is wrong.

local program = ARGV[1]
local given, slack, count, place = unpack('<I8I8I8', program)
set_now(given)

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

-- The states of cells, which are read once and written at the end; false if the key has a foreign value.
local states, keys_of_states = {}, {}

local function open(key, value)
  -- The key may have a foreign type, for which MGET returns nil.
  local found = value or redis.pcall('GET', key) or NOTHING
  if type(found) == 'table' or #found ~= 24 and #found ~= 44 then return false end
  local before, a, b = unpack('<I8I8I8', found)
  local state = { before = before, at = before, a = a, b = b, is_stored = found ~= NOTHING, changed = false }
  if #found == 44 then state.count = string.sub(found, 25) end
  return state
end

-- Moves a state to now, and returns the units of its unsettled reservations whose time to live is over.
local function update(state, cell)
  state.cell = cell
  state.at, state.a, state.b =
    move_in(cell.window, cell.kind, cell.amount, cell.period, state.at, state.a, state.b)
  if not cell.due_key then return end
  local changed
  state.a, state.b, state.count, changed = return_due_to_state(
    cell.due_key, cell.kind, cell.amount, cell.period, state.at, state.a, state.b, state.count
  )
  state.changed = state.changed or changed
end

local function write_changed()
  for _, key in ipairs(keys_of_states) do
    local state = states[key]
    local cell = state.cell
    if state.changed and state.a + state.b == 0 and not state.count then
      if state.is_stored then call('DEL', key) end
    elseif state.changed then
      write(
        key, slack, cell.kind, cell.amount, cell.period, state.before, state.at, state.a, state.b, cell.window,
        state.count
      )
    end
  end
end

-- Changes one cell by the packed units of its reservation; false if there are none. Returns the units that were free
-- before a charge.
local function settle(key, cell, actual, charged, reserved)
  local units = reserved and unpack('<I7', reserved) - 1 - actual or 0
  if cell.kind == SLIDING_LOG then
    if cell.due_key then return_due_to_log(cell.due_key, key, cell.period) end
    if units > 0 then return return_to_log(key, cell.period, charged, units) end
    if units < 0 then return charge_log(key, cell.amount, cell.period, cell.excess, -units) end
    return
  end
  local state = states[key]
  if not state then return end
  update(state, cell)
  if units == 0 then return end
  -- Only a charge creates a key.
  if units > 0 and not state.is_stored and not state.changed then return end
  local changed, free
  state.a, state.b, state.count, changed, free = settle_state(
    cell.kind, cell.amount, cell.capacity, cell.period, cell.excess, actual, charged, reserved, state.at, state.a,
    state.b, state.count
  )
  state.changed = state.changed or changed
  return free
end

-- Reads everything before the first change, because a window may be wrong.
local settlements, reservation_keys, next_key = {}, {}, 1
for index = 1, count do
  local settlement, size = { key = next_key }, 0
  settlement.actual, size, place = unpack('<I8I8', program, place)
  reservation_keys[index], next_key = KEYS[next_key], next_key + 1 + size
  for number = 1, size do
    local cell, returns = {}, 0
    returns, cell.excess, cell.kind, cell.amount, cell.capacity, cell.period, place =
      unpack('<I8I8I8I8I8I8', program, place)
    if cell.kind == CALENDAR then
      cell.kind, cell.window, place = FIXED_WINDOW, read_window(program, place)
      if cell.window.is_wrong then return pack('<I8', now) end
    end
    if returns == 1 then cell.due_key, next_key = KEYS[next_key], next_key + 1 end
    settlement[number] = cell
  end
  settlements[index] = settlement
end

-- First of all, ends all reservations that are open: if anything below fails, units stay charged.
local is_ended, cell_keys = {}, {}
for index, value in ipairs(call('MGET', spread(reservation_keys))) do
  local settlement, key = settlements[index], reservation_keys[index]
  if value and #value == 14 + 28 * #settlement and not is_ended[key] then
    local charged, expires = unpack('<I7I7', value)
    is_ended[key] = true
    if expires > now then settlement.value, settlement.charged = value, charged end
  end
  for number, cell in ipairs(settlement) do
    local is_read = settlement.value or cell.due_key
    if is_read and cell.kind ~= SLIDING_LOG then cell_keys[#cell_keys + 1] = KEYS[settlement.key + number] end
  end
end
call('DEL', spread(reservation_keys))
if #cell_keys > 0 then
  for index, value in ipairs(call('MGET', spread(cell_keys))) do
    local key = cell_keys[index]
    if states[key] == nil then
      states[key] = open(key, value)
      if states[key] then keys_of_states[#keys_of_states + 1] = key end
    end
  end
end

local replies = { now }
for _, settlement in ipairs(settlements) do
  local value = settlement.value
  replies[#replies + 1] = value and 1 or 0
  for number, cell in ipairs(settlement) do
    local units, reserved = 0, value and string.sub(value, 28 * number - 13, 28 * number + 14)
    if reserved then units = unpack('<I7', reserved) end
    if units == 0 then reserved = false end
    if reserved and cell.due_key then
      call('ZREM', cell.due_key, due_member(settlement.charged, reserved, KEYS[settlement.key]))
    end
    local free
    if reserved or cell.due_key then
      free = settle(KEYS[settlement.key + number], cell, settlement.actual, settlement.charged, reserved)
    end
    replies[#replies + 1], replies[#replies + 2] = units, free or 0
  end
end
write_changed()
return replies
