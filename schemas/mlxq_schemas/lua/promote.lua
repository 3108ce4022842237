-- Move a delayed job to its stream, if it is due and still delayed. Any number of workers may try.
-- KEYS: job, delayed, the three jobs streams, the most urgent first
-- ARGV: id
-- Returns: 1 if it moved, else 0
local due = redis.call('ZSCORE', KEYS[2], ARGV[1])
if not due or tonumber(due) > clock() then return 0 end
local known = redis.call('HMGET', KEYS[1], 'state', 'spec', 'stream')
-- Delayed by hand: there is no state yet.
local waits = known[1] == 'delayed' or (not known[1] and known[2])
if waits then
  local stream = KEYS[4]
  for i = 3, 5 do
    if known[3] == KEYS[i] then stream = KEYS[i] end
  end
  enqueue(KEYS[1], stream, ARGV[1])
end
redis.call('ZREM', KEYS[2], ARGV[1])
return waits and 1 or 0
