
-- Reservations of which units are returned if they are not settled are also in a sorted set of each cell, by the time
-- at which they expire. A member is the time of the charge, the units, and a part of the key of the reservation, so
-- that it is unique.
local function due_member(charged, reserved, reservation)
  return pack('<I7', charged) .. reserved .. string.sub(reservation, -22)
end

-- Removes reservations of a cell whose time to live is over, and calls `each` with the time of the charge and the
-- packed units. At most `max`: any others are returned by later calls.
local function take_due(key, max, each)
  local due = redis.pcall('ZCOUNT', key, '-inf', digits(now))
  if type(due) == 'table' or due == 0 then return end
  local members = call('ZRANGE', key, 0, math.min(due, max) - 1)
  call('ZREM', key, spread(members))
  for _, member in ipairs(members) do
    each(unpack('<I7', member), string.sub(member, 8, 35))
  end
end

local MAX_DUE, MAX_DUE_IN_LOG = 1000, 32

local function return_due_to_log(due_key, key, period)
  take_due(due_key, MAX_DUE_IN_LOG, function(charged, reserved)
    return_to_log(key, period, charged, unpack('<I7', reserved) - 1)
  end)
end

-- Returns the new numbers and count of a state that was moved to now, and true if units were returned.
local function return_due_to_state(due_key, kind, amount, period, at, a, b, count)
  local changed = false
  take_due(due_key, MAX_DUE, function(charged, reserved)
    local units, counted = unpack('<I7', reserved) - 1, nil
    a, b, count, counted = return_to_state(kind, amount, period, units, charged, reserved, at, a, b, count)
    changed = changed or counted
  end)
  return a, b, count, changed
end

