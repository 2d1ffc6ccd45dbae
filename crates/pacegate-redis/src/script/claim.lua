-- Claims an event for one report. KEYS[1]: the claim. ARGV: the owner, the instant of the event and the end of the
-- claim in microseconds, and the time to live of the key in milliseconds. Returns 1 if the owner has the claim, else 0.
local known = redis.call('GET', KEYS[1])
if known then
  local ends, owner = string.match(known, '^(%d+) (%x+)$')
  -- The key may outlive the claim.
  if ends and tonumber(ends) > tonumber(ARGV[2]) then
    return owner == ARGV[1] and 1 or 0
  end
end
redis.call('SET', KEYS[1], ARGV[3] .. ' ' .. ARGV[1], 'PX', ARGV[4])
return 1
