
-- Returns the tokens of a charge of `units` that are certainly missing: see `owed` in token_bucket.rs. `a` and `b` are
-- the state just after the charge, with all tokens that were returned before added to `a`, of which refunds returned
-- `before`.
local function owed_tokens(count, amount, period, charged, units, a, b, before)
  if amount == 0 or not count then return 0 end
  local since, settled, refunded = unpack('<I8I6I6', count)
  -- A later count does not know all that was returned.
  if since > charged or math.max(settled, refunded) == MAX_COUNT then return 0 end
  local in_order = select(2, move(TOKEN_BUCKET, amount, period, charged, a, b)) - settled - refunded
  local own = select(2, move(TOKEN_BUCKET, amount, period, charged, units, 0)) - (refunded - before)
  return math.max(in_order, own, 0)
end

local function add_to_count(count, by_settling, by_refunds)
  if not count then return end
  local since, settled, refunded = unpack('<I8I6I6', count)
  return pack_count(since, settled + by_settling, refunded + by_refunds)
end

-- Returns units to a state that was moved to now: its new numbers and count, and true if the units still counted.
-- `reserved` are the units of the charge and the state just after it, packed.
local function return_to_state(kind, amount, period, units, charged, reserved, at, a, b, count)
  if kind == TOKEN_BUCKET then
    local all, a_then, b_then, refunded = unpack('<I7I7I7I7', reserved)
    units = math.min(units, owed_tokens(count, amount, period, charged, all - 1, a_then, b_then, refunded))
    a = a - units
    if a < 0 then a, b = 0, 0 end
    return a, b, add_to_count(count, units, 0), true
  end
  if charged >= at then
    a = math.max(a - units, 0)
    if kind == FIXED_WINDOW and a <= amount then b = 0 end
    return a, b, count, true
  elseif kind == SLIDING_WINDOW and charged >= at - period then
    return a, math.max(b - units, 0), count, true
  end
  return a, b, count, false
end

