-- Counts the tokens that were returned to a bucket, for its open reservations. The value is the time when the count
-- began, the tokens that settlements returned, those that refunds and resets returned, and the time until which it is
-- needed. Only a reservation starts a count, so that plain charges of a bucket need no more keys.

-- Returns false if there is no count.
local function read_returns(key)
  local value = redis.pcall('GET', key)
  if type(value) ~= 'string' or #value ~= 32 then return false end
  return unpack('<I8I8I8I8', value)
end

-- Adds returned tokens to a count, if there is one. A count that gets too high for a double ends: then nothing more is
-- returned by the reservations before.
local function count_returned(key, by_settling, by_refunds)
  local since, settled, refunded, needed = read_returns(key)
  if not since or by_settling + by_refunds == 0 then return end
  settled, refunded = settled + by_settling, refunded + by_refunds
  if settled + refunded < 2 ^ 52 then
    call('SET', key, pack('<I8I8I8I8', since, settled, refunded, needed), 'KEEPTTL')
  else
    call('DEL', key)
  end
end

