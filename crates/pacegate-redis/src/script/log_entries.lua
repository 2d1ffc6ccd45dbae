
-- A sliding log is a list of entries (instant, units, total units up to this one). The units between two entries are
-- one subtraction.
local function entry(key, index)
  return unpack('<I8I8I8', call('LINDEX', key, index))
end

-- Returns the first index from `low` to `high` whose entry satisfies `holds`, which is true of all later ones too.
local function search(key, low, high, holds)
  while low < high do
    local middle = floor((low + high) / 2)
    if holds(entry(key, middle)) then high = middle else low = middle + 1 end
  end
  return low
end

-- Returns units to the entry of a log that was written at `charged`. Only the differences of totals matter: those of
-- the later entries become smaller, or those of the earlier ones larger, whichever are fewer. The log never gets empty
-- in between, because a deleted key cannot be created again while its slot migrates.
local function return_to_log(key, period, charged, units)
  -- Returns the entries `from` to `to` with `more` added to their totals.
  local function changed_totals(from, to, more)
    local entries = call('LRANGE', key, from, to)
    for index, value in ipairs(entries) do
      local instant, had, ever = unpack('<I8I8I8', value)
      entries[index] = pack('<I8I8I8', instant, had, ever + more)
    end
    return entries
  end

  -- Adds entries to the end, or to the start, in portions that fit on the stack of Lua.
  local function push(entries, is_start)
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

  local length = redis.pcall('LLEN', key)
  if type(length) == 'table' or length == 0 or charged + period <= now then return end
  local last = length - 1
  local index = search(key, 0, last, function(instant) return instant >= charged end)
  local instant, had, ever = entry(key, index)
  if instant ~= charged then return end
  local back, is_empty = math.min(units, had), had <= units
  if last - index <= index then
    local later = last > index and changed_totals(index + 1, last, -back) or {}
    if not is_empty then call('LSET', key, index, pack('<I8I8I8', instant, had - back, ever - back)) end
    if is_empty and index == 0 then return call('DEL', key) end
    if is_empty or #later > 0 then call('LTRIM', key, 0, is_empty and index - 1 or index) end
    push(later)
  else
    local earlier = index > 0 and changed_totals(0, index - 1, back) or {}
    if not is_empty then call('LSET', key, index, pack('<I8I8I8', instant, had - back, ever)) end
    call('LTRIM', key, is_empty and index + 1 or index, -1)
    push(reverse(earlier), true)
  end
end

