-- What the scripts share; put before each of them.
--
-- All numbers are whole and below 2^53, so doubles hold them exactly.

local spread, unpack, pack = unpack, struct.unpack, struct.pack
local call, floor = redis.call, math.floor

local FIXED_WINDOW, SLIDING_WINDOW, TOKEN_BUCKET, SLIDING_LOG = 0, 1, 2, 3

-- Set once, by each script, before anything else looks at it: the server's time, unless another was given, plus 1.
local now

local function set_now(given)
  if given > 0 then
    now = given - 1
  else
    local time = call('TIME')
    now = time[1] * 1000000 + time[2]
  end
end

-- x * y / z as quotient and remainder. Where the product has no exact double, y is taken in digits so small that no
-- intermediate result reaches 2^53.
local function muldiv(x, y, z)
  local product = x * y
  if product < 2 ^ 53 then
    local rest = product % z
    return (product - rest) / z, rest
  end
  local base, digits, left = 2, {}, y
  while base * 2 * z <= 2 ^ 52 do base = base * 2 end
  while left > 0 do
    digits[#digits + 1] = left % base
    left = floor(left / base)
  end
  local whole = floor(x / z)
  local part, quotient, rest = x - whole * z, 0, 0
  for digit = #digits, 1, -1 do
    local sum = rest * base + part * digits[digit]
    rest = sum % z
    quotient = quotient * base + (sum - rest) / z
  end
  return whole * y + quotient, rest
end

-- Moves a pair of windows (count of this one, count of the one before) to now.
local function roll(cell)
  local period, passed = cell.period, now - cell.at
  if passed < 0 then
    -- The clock has stepped back: what was used counts as used now.
    cell.at, cell.changed = now - now % period, true
  elseif passed >= 2 * period then
    cell.at, cell.a, cell.b = now - now % period, 0, 0
  elseif passed >= period then
    cell.at, cell.a, cell.b = cell.at + period, 0, cell.a
  end
end

-- Lets a debt of `a` tokens and `b / period` of one drain until now.
local function drain(cell)
  local period, tokens, part, passed = cell.period, cell.a, cell.b, now - cell.at
  if passed < 0 then passed, cell.changed = 0, true end
  cell.at = now
  if tokens >= cell.capacity then tokens, part = cell.capacity, 0 end
  if passed >= (tokens + 1) * period then
    tokens, part = 0, 0
  elseif tokens > 0 or part > 0 then
    local whole, rest = muldiv(passed, cell.amount, period)
    tokens, part = tokens - whole, part - rest
    if part < 0 then tokens, part = tokens - 1, part + period end
    if tokens < 0 then tokens, part = 0, 0 end
  end
  cell.a, cell.b = tokens, part
end

-- As text, for commands that take it so.
local function digits(number)
  return string.format('%.0f', number)
end

-- How long a string has to live, in microseconds. It may live longer: it names its own window.
local function life(cell)
  if cell.amount == 0 then return cell.period end
  if cell.kind == FIXED_WINDOW then return cell.at + cell.period - now end
  if cell.kind == SLIDING_WINDOW then return cell.at + 2 * cell.period - now end
  return (cell.a + 1) * (cell.period / cell.amount)
end

local function write(key, cell, slack)
  local value = pack('<I8I8I8', cell.at, cell.a, cell.b)
  call('SET', key, value, 'PX', digits(math.ceil(life(cell) / 1000) + slack))
end

