
-- Decides a batch in which each request has one charge, each cell has one cost, and no cell is a log. It does the same
-- as charge_batch.lua, but for this common case only: no tables, one pass.
--
-- KEYS     one for each cell; then, for each reservation, one that shows that it is open.
-- ARGV[1]  the program, packed: wire.rs writes it and reads the reply. 0 repetitions are a reservation, with its time
--          to live in place of the excess.

local program = ARGV[1]
local given, slack, create, size, limits, place = unpack('<I8I8I8I8I8', program)
set_now(given)

local values = size == 1 and { call('GET', KEYS[1]) } or call('MGET', spread(KEYS, 1, size))
local absent = {}
for index = 1, size do
  if not values[index] then absent[#absent + 1] = KEYS[index] end
end
-- MGET returns nil for keys of another type, which must not be overwritten.
local foreign = #absent > 0 and create == 1 and call('EXISTS', spread(absent)) > 0

local reply, index, next_key = { pack('<I8', now) }, 0, size
for _ = 1, limits do
  local count, kind, amount, capacity, period
  count, kind, amount, capacity, period, place = unpack('<I8I8I8I8I8', program, place)
  for _ = 1, count do
    local times, cost, excess, ttl
    times, cost, excess, place = unpack('<I8I8I8', program, place)
    if times == 0 then times, excess, ttl, next_key = 1, 0, excess, next_key + 1 end
    index = index + 1
    local key, value, taken = KEYS[index], values[index] or NOTHING, BROKEN
    local ours = value ~= NOTHING or create == 1 and not (foreign and call('EXISTS', key) == 1)
    local returned = #value == 44 and string.sub(value, 25) or nil
    if (#value == 24 or returned) and ours then
      local before, a, b = unpack('<I8I8I8', value)
      local at, changed = before, false
      -- A limit of 0 denies, and keeps the state for a later limit.
      if amount > 0 or excess > 0 then at, a, b, changed = move(kind, amount, period, before, a, b) end
      taken = 0
      if cost > 0 then
        local free = free_units(kind, amount, capacity, period, at, a, b)
        local fit = math.max(math.min(times, floor(free / cost)), 0)
        taken = fit * cost
        if excess > 0 and fit < times then
          local more
          more, b = record(kind, amount, excess, free - taken, (times - fit) * cost, b)
          taken = taken + more
        end
      end
      local reserved
      if ttl and taken > 0 then reserved, returned = pack_reserved(kind, cost, a + taken, b, returned) end
      if taken > 0 or changed then
        write(key, slack, kind, amount, period, before, at, a + taken, b, nil, returned)
      end
      if reserved then write_reservation(KEYS[next_key], slack, ttl, reserved) end
      if returned then value = string.sub(value, 1, 24) end
    end
    if taken == BROKEN then value = NOTHING end
    reply[2 * index], reply[2 * index + 1] = value, pack('<I8', taken)
  end
end
return table.concat(reply)
