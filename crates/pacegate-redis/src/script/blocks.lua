-- Reads or changes the blocked keys, which all processes share.
--
-- KEYS[1]     a sorted set. Members are blocked keys, and their scores are the ends of the blocks in microseconds. The
--             empty member has the negated version as its score. Every change sets another version.
-- ARGV[1]     the arguments, packed: store/blocks.rs writes them and reads the reply.
-- ARGV[2...]  the members to add or to remove.

local READ, ADD, REMOVE = 0, 1, 2

local key = KEYS[1]
local given, slack, action, known, time, max = unpack('<I8I8I8I8I8I8', ARGV[1])
set_now(given)

local before = -(call('ZSCORE', key, '') or 0)
local version, changed, reply = before, 0, {}

if action == READ and version ~= known then
  local found = call('ZRANGE', key, 1, -1, 'WITHSCORES')
  for place = 1, #found, 2 do
    reply[#reply + 1] = pack('<I8I8', found[place + 1], #found[place])
    reply[#reply + 1] = found[place]
  end
elseif action == ADD then
  call('ZREMRANGEBYSCORE', key, 0, digits(now))
  local count = call('ZCARD', key) - (before > 0 and 1 or 0)
  if count < max or call('ZSCORE', key, ARGV[2]) then
    call('ZADD', key, digits(now + time), ARGV[2])
    changed = 1
  end
elseif action == REMOVE then
  changed = call('ZREM', key, spread(ARGV, 2))
end

if changed > 0 then
  -- The time, so that a version does not return after the key was lost.
  version = math.max(now, before + 1)
  call('ZADD', key, digits(-version), '')
  local last = call('ZRANGE', key, -1, -1, 'WITHSCORES')[2]
  call('PEXPIRE', key, math.ceil(math.max(last - now, 0) / 1000) + slack)
end
return pack('<I8I8I8I8', now, before, version, changed) .. table.concat(reply)
