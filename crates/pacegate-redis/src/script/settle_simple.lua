-- Settles reservations of one cell each, all of which are different. No cell is a log, has a calendar period or returns
-- unsettled reservations. It does the same as settle.lua, but for this common case only.
--
-- KEYS     one for each reservation, which shows that it is open; then its cells, in the same order.
-- ARGV[1]  the program, packed: wire.rs writes it.
-- Returns  the same as settle.lua.

local program = ARGV[1]
local given, slack, size, limits, place = unpack('<I8I8I8I8', program)
set_now(given)

local values = call('MGET', spread(KEYS))
-- First of all, ends the reservations: if anything below fails, units stay charged.
call('DEL', spread(KEYS, 1, size))

local reply, index = { now }, 0
for _ = 1, limits do
  local count, kind, amount, capacity, period
  count, kind, amount, capacity, period, place = unpack('<I8I8I8I8I8', program, place)
  for _ = 1, count do
    local actual, excess, charged, expires, units
    actual, excess, place = unpack('<I8I8', program, place)
    index = index + 1
    local reservation, is_open, free = values[index], 0, 0
    if reservation and #reservation == 42 then
      charged, expires, units = unpack('<I7I7I7', reservation)
      if expires > now then is_open = 1 end
    end
    if is_open == 1 and units - 1 ~= actual then
      local key, value = KEYS[size + index], values[size + index]
      -- The key may have a foreign type, for which MGET returns nil.
      if not value and actual >= units then value = redis.pcall('GET', key) or NOTHING end
      if value and (#value == 24 or #value == 44) then
        local before, a, b = unpack('<I8I8I8', value)
        local returned, at, changed = #value == 44 and string.sub(value, 25) or nil, nil, nil
        at, a, b = move(kind, amount, period, before, a, b)
        a, b, returned, changed, free = settle_state(
          kind, amount, capacity, period, excess, actual, charged, string.sub(reservation, 15), at, a, b, returned
        )
        if changed and a + b == 0 and not returned then
          call('DEL', key)
        elseif changed then
          write(key, slack, kind, amount, period, before, at, a, b, nil, returned)
        end
      end
    end
    reply[3 * index - 1], reply[3 * index], reply[3 * index + 1] = is_open, is_open == 1 and units or 0, free
  end
end
return reply
