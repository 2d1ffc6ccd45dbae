-- Decides a batch of requests in one step. replay.rs computes every answer from the reply, so the script only computes
-- the free units, takes those that fit, and writes.
--
-- KEYS     one for each cell, strings before logs; one for each cell that returns unsettled reservations; then, if
--          `once` is set, one that stores the reply; otherwise one for each reservation, which shows that it is open.
-- ARGV[1]  the program, packed: wire.rs writes it and reads the reply.

local program = ARGV[1]
local given, slack, once, repeats, create, size, strings, runs, returning, place =
  unpack('<I8I8I8I8I8I8I8I8I8', program)
local next_key = size + returning

-- A stored reply follows the number of repetitions left. At 0 the request is charged like any other, until the stored
-- reply expires.
local remembered = once > 0 and call('GET', KEYS[next_key + 1])
if remembered then
  local left, rest = unpack('<I8', remembered), string.sub(remembered, 9)
  if left > 0 then
    call('SET', KEYS[next_key + 1], pack('<I8', left - 1) .. rest, 'KEEPTTL')
    return rest
  end
end
set_now(given)

-- Reads a cell that is a string.
local function open(cell, value)
  local at, a, b = unpack('<I8I8I8', value)
  cell.taken, cell.since, cell.before = 0, at, value
  if #value > 24 then cell.before, cell.count = string.sub(value, 1, 24), string.sub(value, 25) end
  -- A limit of 0 denies, and keeps the state for a later limit. A fixed window may count nevertheless.
  if cell.amount > 0 or cell.kind == FIXED_WINDOW then
    at, a, b, cell.changed = move_in(cell.window, cell.kind, cell.amount, cell.period, at, a, b)
  end
  if cell.due_key then
    local changed
    a, b, cell.count, changed =
      return_due_to_state(cell.due_key, cell.kind, cell.amount, cell.period, at, a, b, cell.count)
    if changed then cell.before, cell.changed = pack('<I8I8I8', at, a, b), true end
  end
  cell.at, cell.a, cell.b = at, a, b
  cell.free = free_units(cell.kind, cell.amount, cell.capacity, cell.period, at, a, b)
end

local cells, is_wrong, due_keys = {}, false, size
for index = 1, size do
  local returns, kind, amount, capacity, period, window, due_key
  returns, kind, amount, capacity, period, place = unpack('<I8I8I8I8I8', program, place)
  if returns == 1 then due_keys, due_key = due_keys + 1, KEYS[due_keys + 1] end
  if kind == CALENDAR then
    kind, window, place = FIXED_WINDOW, read_window(program, place)
    is_wrong = is_wrong or window.is_wrong
  end
  cells[index] = {
    kind = kind, amount = amount, capacity = capacity, period = period, window = window, due_key = due_key,
    at = false, since = 0, a = 0, b = 0, free = -1, taken = BROKEN, before = NOTHING,
  }
end

if is_wrong then return pack('<I8', now) end

if strings > 0 then
  -- Not GET, even for one key: an error for a foreign value would fail the whole batch.
  local values = call('MGET', spread(KEYS, 1, strings))
  local absent = {}
  for index = 1, strings do
    if not values[index] then absent[#absent + 1] = KEYS[index] end
  end
  -- MGET returns nil for keys of another type, which must not be overwritten.
  local foreign = #absent > 0 and create == 1 and call('EXISTS', spread(absent)) > 0
  for index = 1, strings do
    local cell, value = cells[index], values[index]
    if value and (#value == 24 or #value == 44) then
      open(cell, value)
    elseif not value and create == 1 and not (foreign and call('EXISTS', KEYS[index]) == 1) then
      open(cell, NOTHING)
    end
  end
end

-- For logs only: the waiting time of each denial.
local waits, frees_after = {}, nil

if size > strings then
  -- The clock stepped back: moves later entries to now.
  local function rebase_log(key)
    local index = -1
    while true do
      local value = call('LINDEX', key, index)
      if not value then return end
      local instant, units, ever = unpack('<I8I8I8', value)
      if instant <= now then return end
      call('LSET', key, index, pack('<I8I8I8', now, units, ever))
      index = index - 1
    end
  end

  local function open_log(cell, key)
    local value = redis.pcall('LINDEX', key, -1)
    if type(value) == 'table' or value and #value ~= 24 or not value and create == 0 then return end
    cell.taken, cell.free, cell.reset = 0, cell.amount, 0
    if not value then return end
    if unpack('<I8', value) > now then rebase_log(key) end
    local instant, units, ever = entry(key, -1)
    cell.past = instant + cell.period <= now
    if cell.past then return end
    local length = call('LLEN', key)
    cell.first = search(key, 0, length - 1, function(since) return since + cell.period > now end)
    local _, first_units, first_ever = entry(key, cell.first)
    cell.base, cell.last = first_ever - first_units, length - 1
    cell.at, cell.units, cell.ever = instant, units, ever
    cell.free, cell.reset = cell.amount - (ever - cell.base), instant + cell.period - now
  end

  -- Permits are a sorted set by the time of acquisition, with a member for each unit.
  local function open_permits(cell, key)
    local newest = redis.pcall('ZRANGE', key, -1, -1, 'WITHSCORES')
    if newest.err or #newest == 0 and create == 0 then return end
    cell.taken, cell.free, cell.reset, cell.past, cell.held, cell.permits = 0, cell.amount, 0, 0, 0, {}
    if #newest == 0 then return end
    local instant = tonumber(newest[2])
    if instant > now then
      for _, member in ipairs(call('ZRANGEBYSCORE', key, '(' .. digits(now), '+inf')) do
        call('ZADD', key, now, member)
      end
      instant = now
    end
    cell.held = call('ZCOUNT', key, '(' .. digits(now - cell.period), '+inf')
    cell.past = call('ZCARD', key) - cell.held
    cell.free = cell.amount - cell.held
    if cell.held > 0 then cell.reset = instant + cell.period - now end
  end

  for index = strings + 1, size do
    local cell = cells[index]
    if cell.due_key then return_due_to_log(cell.due_key, KEYS[index], cell.period) end
    if cell.kind == SLIDING_LOG then open_log(cell, KEYS[index]) else open_permits(cell, KEYS[index]) end
    if cell.taken == 0 then cell.before = pack('<i8I8I8', cell.free, cell.reset, 0) end
  end

  -- How long until the oldest `units` are past.
  frees_after = function(cell, key, units)
    if cell.amount == 0 then return 0 end
    if cell.kind ~= SLIDING_LOG then
      if units > cell.held then return cell.period end
      local nth = cell.past + units - 1
      return call('ZRANGE', key, nth, nth, 'WITHSCORES')[2] + cell.period - now
    end
    if not cell.at or units > cell.ever - cell.base then return cell.period end
    local index = search(key, cell.first, cell.last, function(_, _, ever) return ever - cell.base >= units end)
    return entry(key, index) + cell.period - now
  end
end

local function deny(index, units)
  local cell = cells[index]
  if index > strings and cell.taken ~= BROKEN then
    waits[#waits + 1] = pack('<I8', frees_after(cell, KEYS[index], units - cell.free))
  end
end

local function take(cell, units, permit)
  cell.free, cell.taken = cell.free - units, cell.taken + units
  if cell.permits and units > 0 then cell.permits[#cell.permits + 1] = { permit, units } end
end

-- Takes units that do not fit.
local function take_excess(cell, excess, units)
  if cell.taken == BROKEN then return end
  local taken
  taken, cell.b = record(cell.kind, cell.amount, excess, cell.free, units, cell.b)
  take(cell, taken)
end

-- Takes one charge of a request with several. Returns false if it denies, and true if it fits.
local function charge(index, cost, permit, enforced, excess)
  local cell, units = cells[index], math.max(cost, 1)
  if units <= cell.free then
    take(cell, cost, permit)
    return true, true
  end
  if excess > 0 and cost > 0 then
    take_excess(cell, excess, cost)
    units = 1
  end
  deny(index, units)
  -- Count: a peek is admitted until the limit is exceeded.
  if excess % 2 == 1 and cost == 0 and cell.free == 0 then return true end
  return enforced == 0 and cell.taken ~= BROKEN
end

-- Reservations that are open: key, time to live, units, and the members of sorted sets to add.
local reserved = {}

-- Returns the packed units of a reservation under one limit. Adds the member of the cell to `due`, if it returns them.
local NO_UNITS = string.rep('\0', 28)
local function reserve_units(cell, cost, is_taken, key, due)
  if not is_taken then return NO_UNITS end
  local units
  units, cell.count = pack_reserved(cell.kind, cost, cell.a + cell.taken, cell.b, cell.count)
  if cell.due_key and cost > 0 then
    local life = 2 * cell.period
    if cell.kind == TOKEN_BUCKET then life = (cell.a + cell.taken + 1) * (cell.period / cell.amount) end
    due[#due + 1] = { cell.due_key, due_member(now, units, key), math.min(life, 2 ^ 53) }
  end
  return units
end

-- Reserves units of one cell, which needs few tables. Returns false if the reservation is not so simple.
local NOT_DUE = {}
local function reserve_simple(ttl)
  local index, cost, _, enforced, excess, next = unpack('<I8I8c16I8I8', program, place)
  local cell = cells[index]
  if enforced == 0 or excess > 0 or cell.due_key then return false end
  place, next_key = next, next_key + 1
  if math.max(cost, 1) > cell.free then
    deny(index, math.max(cost, 1))
    return true
  end
  take(cell, cost)
  local key = KEYS[next_key]
  reserved[#reserved + 1] = { key, ttl, reserve_units(cell, cost, true, key), NOT_DUE }
  return true
end

for _ = 1, runs do
  local times, charges, ttl, index, cost, permit, enforced, excess
  times, charges, ttl, place = unpack('<I8I8I8', program, place)
  if charges == 1 and times > 0 and ttl == 0 then
    index, cost, permit, enforced, excess, place = unpack('<I8I8c16I8I8', program, place)
    local cell, fit = cells[index], times
    if cost > 0 then
      fit = math.max(math.min(times, floor(cell.free / cost)), 0)
      if fit > 0 then take(cell, fit * cost, permit) end
      if excess > 0 and fit < times then
        take_excess(cell, excess, (times - fit) * cost)
        cost = 1
      end
    elseif cell.free < 1 then
      fit, cost = 0, 1
    end
    if fit < times then deny(index, cost) end
  elseif not (ttl > 0 and times == 1 and charges == 1 and reserve_simple(ttl)) then
    -- Charges are taken in turn, so that later ones see the earlier. All are returned if one does not fit, or if this
    -- is a peek (times = 0). Then those whose excess is recorded are taken again.
    local fits, broken, old, again, units, due = times > 0, false, {}, {}, {}, {}
    if ttl > 0 then next_key = next_key + 1 end
    local reservation_key = KEYS[next_key]
    if times > 1 then
      -- As often as all enforced cells fit, at least once.
      local next = place
      for _ = 1, charges do
        index, cost, permit, enforced, excess, next = unpack('<I8I8c16I8I8', program, next)
        if enforced == 1 then times = math.min(times, floor(cells[index].free / cost)) end
      end
      times = math.max(times, 1)
    end
    for _ = 1, charges do
      index, cost, permit, enforced, excess, place = unpack('<I8I8c16I8I8', program, place)
      if times == 0 then excess = 0 else cost = cost * times end
      local cell = cells[index]
      old[#old + 1] = { cell, cell.free, cell.taken, cell.a, cell.b, cell.permits and #cell.permits }
      if excess > 0 then again[#again + 1] = { index, cost, permit, enforced, excess } end
      local passes, is_taken = charge(index, cost, permit, enforced, excess)
      if not passes then fits = false end
      broken = broken or cell.taken == BROKEN
      if ttl > 0 then units[#units + 1] = reserve_units(cell, cost, is_taken, reservation_key, due) end
    end
    if ttl > 0 and fits then
      reserved[#reserved + 1] = { reservation_key, ttl, table.concat(units), due }
    end
    if not fits then
      for step = #old, 1, -1 do
        local cell, permits = old[step][1], old[step][6]
        cell.free, cell.taken, cell.a, cell.b = old[step][2], old[step][3], old[step][4], old[step][5]
        while permits and #cell.permits > permits do cell.permits[#cell.permits] = nil end
      end
      if not broken then
        for _, step in ipairs(again) do charge(step[1], step[2], step[3], step[4], step[5]) end
      end
    end
  end
end

-- So far only logs were changed: entries in the future, and units that were returned. From here on nothing can fail.
for index = 1, strings do
  local cell = cells[index]
  if cell.taken ~= BROKEN and (cell.taken > 0 or cell.changed) then
    local a = cell.a + cell.taken
    write(KEYS[index], slack, cell.kind, cell.amount, cell.period, cell.since, cell.at, a, cell.b, cell.window,
      cell.count)
  end
end

for index = strings + 1, size do
  local cell, key = cells[index], KEYS[index]
  if cell.taken ~= BROKEN and cell.taken > 0 then
    if cell.permits then
      -- While its slot migrates, a key that was deleted cannot be created again: keep one member in between.
      local empties = cell.past > 0 and cell.held == 0
      if empties then call('ZADD', key, now, '') end
      if cell.past > 0 then
        call('ZREMRANGEBYSCORE', key, '-inf', digits(now - cell.period))
      end
      for _, permit in ipairs(cell.permits) do
        -- If the permit was charged before, the numbering of its units continues.
        local unit, left = 1, permit[2]
        while left > 0 do
          left = left - call('ZADD', key, 'NX', now, permit[1] .. pack('>I4', unit))
          unit = unit + 1
        end
      end
      if empties then call('ZREM', key, '') end
    elseif not cell.at then
      -- Add the new entry first: see above.
      call('RPUSH', key, pack('<I8I8I8', now, cell.taken, cell.taken))
      if cell.past then call('LTRIM', key, -1, -1) end
    else
      if cell.first > 0 then call('LTRIM', key, cell.first, -1) end
      local ever = cell.ever + cell.taken
      if cell.at == now then
        call('LSET', key, -1, pack('<I8I8I8', now, cell.units + cell.taken, ever))
      else
        call('RPUSH', key, pack('<I8I8I8', now, cell.taken, ever))
      end
    end
    call('PEXPIRE', key, math.ceil(cell.period / 1000) + slack)
  end
end

for _, reservation in ipairs(reserved) do
  local key, ttl, units, due = spread(reservation)
  write_reservation(key, slack, ttl, units)
  for _, member in ipairs(due) do
    local due_key, text, life = spread(member)
    call('ZADD', due_key, digits(now + ttl), text)
    -- Until the last one has expired, and for as long as its units can then still count.
    local last = call('ZRANGE', due_key, -1, -1, 'WITHSCORES')[2]
    call('PEXPIRE', due_key, digits(math.ceil((last - now) / 998 + life / 1000) + slack))
  end
end

local reply = { pack('<I8', now) }
for index = 1, size do
  reply[2 * index], reply[2 * index + 1] = cells[index].before, pack('<I8', cells[index].taken)
end
reply = table.concat(reply) .. table.concat(waits)
if once > 0 and create == 1 and not remembered then
  call('SET', KEYS[size + returning + 1], pack('<I8', repeats) .. reply, 'PX', once)
end
return reply
