-- Shared by all scripts: prepended to each of them.
--
-- All numbers in decisions are integers below 2^53, which doubles represent exactly.

local spread, unpack, pack = unpack, struct.unpack, struct.pack
local call, floor = redis.call, math.floor

local FIXED_WINDOW, SLIDING_WINDOW, TOKEN_BUCKET, SLIDING_LOG = 0, 1, 2, 3
-- Fixed windows of a calendar period. The current window follows the limit.
local CALENDAR = 100
local BROKEN, NOTHING = 9007199254740992, pack('<I8I8I8', 0, 0, 0)

-- The time in microseconds. Each script sets it once, first of all: to the server's time, or to the given time minus 1.
local now

local function set_now(given)
  if given > 0 then
    now = given - 1
  else
    local time = call('TIME')
    now = time[1] * 1000000 + time[2]
  end
end

-- Returns quotient and remainder of x * y / z. If the product is too large for a double, y is split into digits so
-- small that no intermediate result reaches 2^53.
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

-- A state is an instant `at` and two numbers. Fixed windows: the count, and 0 unless units beyond the amount are debt,
-- which later windows pay. Sliding windows: the counts of the current and the previous window. Buckets: the used tokens
-- and the fraction of a token, in units of one token / microseconds of the period.

-- The value of a bucket with reservations ends with a count of the tokens that were returned to it: the time when the
-- count began, the tokens that settlements returned, and those that refunds and resets returned. It expires with the
-- value: the bucket is full then, so that its reservations may return nothing. The maximum means that there were too
-- many.
local MAX_COUNT = 2 ^ 48 - 1

local function pack_count(since, settled, refunded)
  return pack('<I8I6I6', since, math.min(settled, MAX_COUNT), math.min(refunded, MAX_COUNT))
end

-- The second number of a fixed window with debt: 1, or the number of the window of a calendar period; plus 2^35 * the
-- packed units that are not carried, because they were only counted, or are from a higher limit. The lower 12 bits of
-- the latter are the highest bits of the units, and the others say how often the units were halved for that.
local DEBT_WORD, MAX_AMOUNT = 2 ^ 35, 999999999999999

local function uncarried(b)
  if b < DEBT_WORD then return 0 end
  local packed = floor(b / DEBT_WORD)
  local highest = packed % 4096
  return highest * 2 ^ math.min((packed - highest) / 4096, 38)
end

local function pack_uncarried(units)
  local halvings = 0
  while units >= 4096 do units, halvings = floor(units / 2), halvings + 1 end
  return (halvings * 4096 + units) * DEBT_WORD
end

-- Moves a state to now. The fourth result is true if the clock stepped back: usage then counts as of now, and the state
-- has to be written.
local function move(kind, amount, period, at, a, b)
  local passed = now - at
  if kind ~= TOKEN_BUCKET then
    if passed < 0 then return now - now % period, a, b, true end
    if passed < period then return at, a, b end
    if passed < 2 * period and kind == SLIDING_WINDOW then return at + period, 0, a end
    if b > 0 and kind == FIXED_WINDOW then
      a = math.max(a - uncarried(b) - floor(passed / period) * amount, 0)
      return now - now % period, a, a > amount and 1 or 0
    end
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

-- Reads the current window of a calendar period, which the client computed from its estimate of the time. It is wrong
-- if it does not contain now: then the script changes nothing and returns now, and the client sends another window.
local function read_window(program, place)
  local start, stop, number
  start, stop, number, place = unpack('<I8I8I8', program, place)
  return { start = start, stop = stop, number = number, is_wrong = now < start or now >= stop }, place
end

-- The same as `move`, also for a calendar period, which has a `window`. If there is debt, `b` contains the number of
-- the state's window then.
local function move_in(window, kind, amount, period, at, a, b)
  if not window then return move(kind, amount, period, at, a, b) end
  if at > now then return window.start, a, b, true end
  if at >= window.start then return at, a, b end
  if b == 0 then return window.start, 0, 0 end
  a = math.max(a - uncarried(b) - math.max(window.number - b % DEBT_WORD, 0) * amount, 0)
  return window.start, a, a > amount and window.number or 0
end

-- Returns the free units of a state that was moved to now.
local function free_units(kind, amount, capacity, period, at, a, b)
  if kind == FIXED_WINDOW then return amount - a end
  if amount == 0 then return 0 end
  if kind == TOKEN_BUCKET then return capacity - a - (b > 0 and 1 or 0) end
  if b == 0 then return amount - a end
  local whole, rest = muldiv(b, period - (now - at), period)
  return amount - a - whole - (rest > 0 and 1 or 0)
end

-- Returns how many of `units` to record that do not fit into the free ones, and the new second number of the state.
-- `excess` is 1 + 2 * the maximum beyond the capacity, + 1 for debt. While there is debt, none is only counted.
local function record(kind, amount, excess, free, units, b)
  local is_debt, max = excess % 2 == 0, floor((excess - 1) / 2)
  if kind ~= FIXED_WINDOW then return math.max(math.min(units, free + max), 0), b end
  local used = amount - free
  local carried = b > 0 and used - uncarried(b) or 0
  if carried <= amount then
    carried = math.min(used, amount)
  elseif not is_debt then
    return 0, b
  end
  local room = is_debt and math.min(amount + max - carried, MAX_AMOUNT - used) or free + max
  local taken = math.max(math.min(units, room), 0)
  if taken == 0 then return 0, b end
  return taken, is_debt and 1 + pack_uncarried(used - carried) or 0
end

-- Returns a state as a value, and the milliseconds until it expires: `slack` after it has no effect any more. The state
-- contains its window, so a late expiry is harmless. In the same window the expiry stays as it was, and is nil.
-- `window` is set for a calendar period, where `period` is the maximum length of a window.
local function pack_state(slack, kind, amount, period, before, at, a, b, window)
  local has_debt = kind == FIXED_WINDOW and b > 0 and a - uncarried(b) > amount
  if kind == FIXED_WINDOW then
    b = has_debt and b - b % DEBT_WORD + (window and window.number or 1) or 0
  end
  local value, life = pack('<I8I8I8', at, a, b), nil
  if amount == 0 then
    life = 2 * period
  elseif kind == TOKEN_BUCKET then
    life = math.min((a + 1) * (period / amount), 2 ^ 53)
  elseif has_debt then
    local from = window and window.stop - period or at
    life = math.min(from - now + math.ceil((a - uncarried(b)) / amount) * period, 2 ^ 53)
  elseif at == before then
    return value
  elseif kind == FIXED_WINDOW then
    life = (window and window.stop or at + period) - now
  else
    life = at + 2 * period - now
  end
  return value, math.ceil(life / 1000) + slack
end

local function write(key, slack, kind, amount, period, before, at, a, b, window, count)
  local value, expiry = pack_state(slack, kind, amount, period, before, at, a, b, window)
  if count then value = value .. count end
  if expiry then return call('SET', key, value, 'PX', expiry) end
  call('SET', key, value, 'KEEPTTL')
end

-- A reservation is the time of its charge, the time at which it expires, and its units under each limit. Numbers have
-- 56 bits: a value of up to 44 bytes takes one allocation.

-- Returns the units of a reservation under one limit, packed: the units plus 1, the state just after the charge, and
-- the tokens that refunds had returned to a bucket before. All returned tokens are added to the used ones. Also returns
-- the count of a bucket, which begins if there is none.
local function pack_reserved(kind, units, a, b, count)
  local settled, refunded, _ = 0, 0, nil
  if kind == TOKEN_BUCKET and units > 0 then
    count = count or pack_count(now, 0, 0)
    _, settled, refunded = unpack('<I8I6I6', count)
  end
  return pack('<I7I7I7I7', units + 1, a + settled + refunded, b, refunded), count
end

-- Opens a reservation. The key lives a bit longer, because clocks differ.
local function write_reservation(key, slack, ttl, units)
  call('SET', key, pack('<I7I7', now, now + ttl) .. units, 'PX', math.ceil(ttl / 998) + slack)
end

-- Formats an integer with all digits, which commands would otherwise not get.
local function digits(number)
  return string.format('%.0f', number)
end

