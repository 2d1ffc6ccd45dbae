-- Decides a batch of requests in one step. replay.rs computes every answer from the reply, so the script only computes
-- the free units, takes those that fit, and writes.
--
-- KEYS     one for each cell, strings before logs; then, if `once` is set, one that stores the reply; otherwise, for
--          each reservation, one that shows that it is open, and the count of returned tokens of each of its buckets.
-- ARGV[1]  the program, packed: wire.rs writes it and reads the reply.

local program = ARGV[1]
local given, slack, once, repeats, create, size, strings, runs, place = unpack('<I8I8I8I8I8I8I8I8', program)

-- A stored reply follows the number of repetitions left. At 0 the request is charged like any other, until the stored
-- reply expires.
local remembered = once > 0 and call('GET', KEYS[size + 1])
if remembered then
  local left, rest = unpack('<I8', remembered), string.sub(remembered, 9)
  if left > 0 then
    call('SET', KEYS[size + 1], pack('<I8', left - 1) .. rest, 'KEEPTTL')
    return rest
  end
end
set_now(given)

-- Reads a cell that is a string.
local function open(cell, at, a, b)
  cell.taken, cell.since = 0, at
  -- A limit of 0 denies, and keeps the state for a later limit. A fixed window may count nevertheless.
  if cell.amount > 0 or cell.kind == FIXED_WINDOW then
    at, a, b, cell.changed = move_in(cell.window, cell.kind, cell.amount, cell.period, at, a, b)
  end
  cell.at, cell.a, cell.b = at, a, b
  cell.free = free_units(cell.kind, cell.amount, cell.capacity, cell.period, at, a, b)
end

local cells, is_wrong = {}, false
for index = 1, size do
  local kind, amount, capacity, period, window
  kind, amount, capacity, period, place = unpack('<I8I8I8I8', program, place)
  if kind == CALENDAR then
    kind, window, place = FIXED_WINDOW, read_window(program, place)
    is_wrong = is_wrong or window.is_wrong
  end
  cells[index] = {
    kind = kind, amount = amount, capacity = capacity, period = period, window = window,
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
    if value and #value == 24 then
      cell.before = value
      open(cell, unpack('<I8I8I8', value))
    elseif not value and create == 1 and not (foreign and call('EXISTS', KEYS[index]) == 1) then
      open(cell, 0, 0, 0)
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

-- Reservations that are open: key, value, microseconds until they expire, and the counts of returned tokens to write.
local reserved, next_key = {}, size

-- Returns the tokens that settlements returned to a bucket so far, and those that refunds did. Adds the count to
-- `counts` if it has to be written: it lives at least until the tokens that are missing now are refilled, because until
-- then the reservation may return some.
local function returned_before(key, cell, counts)
  local since, settled, refunded, needed = read_returns(key)
  local life = (cell.a + cell.taken + 1) * (cell.period / cell.amount)
  local ends = math.min(now + math.ceil(life), 2 ^ 53)
  if not since or needed < ends then
    local value = pack('<I8I8I8I8', since or now, settled or 0, refunded or 0, ends)
    counts[#counts + 1] = { key, value, ends - now }
  end
  return settled or 0, refunded or 0
end

-- Reserves units of one cell that is no bucket, which needs no tables. Returns false if the reservation is not so simple.
local NO_COUNTS = {}
local function reserve_simple(ttl)
  local index, cost, _, enforced, excess, next = unpack('<I8I8c16I8I8', program, place)
  local cell = cells[index]
  if enforced == 0 or excess > 0 or cell.kind == TOKEN_BUCKET then return false end
  place, next_key = next, next_key + 1
  if math.max(cost, 1) > cell.free then
    deny(index, math.max(cost, 1))
    return true
  end
  take(cell, cost)
  local value = pack('<I8I8I8I8I8I8', now, now + ttl, cost + 1, cell.a + cell.taken, cell.b, 0)
  reserved[#reserved + 1] = { KEYS[next_key], value, ttl, NO_COUNTS }
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
    local fits, broken, old, again, units, counts = times > 0, false, {}, {}, {}, {}
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
      if ttl > 0 then
        local settled, refunded = 0, 0
        if cell.kind == TOKEN_BUCKET then
          next_key = next_key + 1
          if is_taken and cost > 0 then settled, refunded = returned_before(KEYS[next_key], cell, counts) end
        end
        local a = cell.a + cell.taken + settled + refunded
        units[#units + 1] = pack('<I8I8I8I8', is_taken and cost + 1 or 0, a, cell.b, refunded)
      end
    end
    if ttl > 0 and fits then
      local value = pack('<I8I8', now, now + ttl) .. table.concat(units)
      reserved[#reserved + 1] = { reservation_key, value, ttl, counts }
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

-- So far only entries in the future were rewritten. From here on nothing can fail.
for index = 1, strings do
  local cell = cells[index]
  if cell.taken ~= BROKEN and (cell.taken > 0 or cell.changed) then
    local a = cell.a + cell.taken
    write(KEYS[index], slack, cell.kind, cell.amount, cell.period, cell.since, cell.at, a, cell.b, cell.window)
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

-- A reservation lives 30 seconds longer, and a bit for clocks that differ, so that its units can be returned if it was
-- not settled.
for _, reservation in ipairs(reserved) do
  call('SET', reservation[1], reservation[2], 'PX', math.ceil(reservation[3] / 998) + 30000 + slack)
  for _, count in ipairs(reservation[4]) do
    call('SET', count[1], count[2], 'PX', math.ceil(count[3] / 1000) + slack)
  end
end

local reply = { pack('<I8', now) }
for index = 1, size do
  reply[2 * index], reply[2 * index + 1] = cells[index].before, pack('<I8', cells[index].taken)
end
reply = table.concat(reply) .. table.concat(waits)
if once > 0 and create == 1 and not remembered then
  call('SET', KEYS[size + 1], pack('<I8', repeats) .. reply, 'PX', once)
end
return reply
