-- What the scripts share; put before each of them.
--
-- All numbers that decide are whole and below 2^53, so doubles hold them exactly.

local spread, unpack, pack = unpack, struct.unpack, struct.pack
local call, floor = redis.call, math.floor

local FIXED_WINDOW, SLIDING_WINDOW, TOKEN_BUCKET, SLIDING_LOG = 0, 1, 2, 3
local BROKEN, NOTHING = 9007199254740992, pack('<I8I8I8', 0, 0, 0)

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

-- A state is an instant `at` and two numbers: for windows the counts of this one and of the one before, for a bucket
-- the debt in whole tokens and in parts of one, of which a token has as many as a period has microseconds.

-- Moves a state to now. The fourth result tells that the clock has stepped back, so that what was used counts as used
-- now, which has to be written down.
local function move(kind, amount, period, at, a, b)
  local passed = now - at
  if kind ~= TOKEN_BUCKET then
    if passed < 0 then return now - now % period, a, b, true end
    if passed < period then return at, a, b end
    if passed < 2 * period and kind == SLIDING_WINDOW then return at + period, 0, a end
    return now - now % period, 0, 0
  end
  if passed < 0 then return now, a, b, true end
  if passed >= (a + 1) * period then return now, 0, 0 end
  if a == 0 and b == 0 then return now, 0, 0 end
  local whole, rest = muldiv(passed, amount, period)
  a, b = a - whole, b - rest
  if b < 0 then a, b = a - 1, b + period end
  if a < 0 then return now, 0, 0 end
  return now, a, b
end

-- Units that a state which was moved to now has free.
local function free_units(kind, amount, capacity, period, at, a, b)
  if amount == 0 then return 0 end
  if kind == FIXED_WINDOW then return amount - a end
  if kind == TOKEN_BUCKET then return capacity - a - (b > 0 and 1 or 0) end
  if b == 0 then return amount - a end
  local whole, rest = muldiv(b, period - (now - at), period)
  return amount - a - whole - (rest > 0 and 1 or 0)
end

-- Writes a state, to live for as long as it matters and `slack` milliseconds more: it names its own window, so it does
-- no harm for being there too long. In a window that has not changed since it was written, it lives on as it was told.
local function write(key, slack, kind, amount, period, before, at, a, b)
  local value, life = pack('<I8I8I8', at, a, b), nil
  if amount == 0 then
    life = 2 * period
  elseif kind == TOKEN_BUCKET then
    life = (a + 1) * (period / amount)
  elseif at == before then
    return call('SET', key, value, 'KEEPTTL')
  elseif kind == FIXED_WINDOW then
    life = at + period - now
  else
    life = at + 2 * period - now
  end
  call('SET', key, value, 'PX', math.ceil(life / 1000) + slack)
end

-- As text, for commands that would otherwise be given too few digits.
local function digits(number)
  return string.format('%.0f', number)
end

