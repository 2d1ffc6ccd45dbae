
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

