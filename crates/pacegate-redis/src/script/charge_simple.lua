-- Decides a batch in which every request wants one thing of one string, and nobody wants it at another cost. This is
-- what charge_batch.lua does, for the common case and nothing but it: no tables, one pass.
--
-- KEYS     one for each cell.
-- ARGV[1]  the program, packed: wire.rs writes it and reads the reply.

local program = ARGV[1]
local given, slack, create, size, limits, place = unpack('<I8I8I8I8I8', program)
set_now(given)

local values = size == 1 and { call('GET', KEYS[1]) } or call('MGET', spread(KEYS))
local absent = {}
for index = 1, size do
  if not values[index] then absent[#absent + 1] = KEYS[index] end
end
-- MGET is silent about keys that hold something else, and nothing may be written over those.
local strangers = #absent > 0 and create == 1 and call('EXISTS', spread(absent)) > 0

local reply, index = { pack('<I8', now) }, 0
for _ = 1, limits do
  local count, kind, amount, capacity, period
  count, kind, amount, capacity, period, place = unpack('<I8I8I8I8I8', program, place)
  for _ = 1, count do
    local times, cost
    times, cost, place = unpack('<I8I8', program, place)
    index = index + 1
    local key, value, taken = KEYS[index], values[index] or NOTHING, BROKEN
    local ours = value ~= NOTHING or create == 1 and not (strangers and call('EXISTS', key) == 1)
    if #value == 24 and ours then
      local before, a, b = unpack('<I8I8I8', value)
      local at, changed = before, false
      -- A limit of nothing denies whatever was used, and leaves that as it is for the limit that may come after it.
      if amount > 0 then at, a, b, changed = move(kind, amount, period, before, a, b) end
      local fit = 0
      if cost > 0 then
        fit = math.min(times, floor(free_units(kind, amount, capacity, period, at, a, b) / cost))
      end
      taken = fit > 0 and fit * cost or 0
      if taken > 0 or changed then write(key, slack, kind, amount, period, before, at, a + taken, b) end
    end
    if taken == BROKEN then value = NOTHING end
    reply[2 * index], reply[2 * index + 1] = value, pack('<I8', taken)
  end
end
return table.concat(reply)
