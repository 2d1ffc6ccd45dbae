
-- Changes a state that was moved to now by the difference between the reserved units and the used ones. `charged` is
-- the time of the charge, and `reserved` its packed units. Returns the new numbers and count of the state, true if it
-- changed, and the units that were free before those beyond the reserved ones were charged.
local function settle_state(kind, amount, capacity, period, excess, actual, charged, reserved, at, a, b, count)
  local units = unpack('<I7', reserved) - 1 - actual
  if units > 0 then
    local changed
    a, b, count, changed = return_to_state(kind, amount, period, units, charged, reserved, at, a, b, count)
    return a, b, count, changed, 0
  end
  local free = free_units(kind, amount, capacity, period, at, a, b)
  units = -units
  if units > free then
    if excess == 0 then return a, b, count, false, free end
    units, b = record(kind, amount, excess, free, units, b)
  end
  return a + units, b, count, units > 0, free
end

