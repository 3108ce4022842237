-- Cancel a job: end it here if no worker has it, else ask the worker.
-- KEYS: job, events, result, results, control, delayed, the three jobs streams
-- ARGV: id, group, cancelled event, cancelled result, channel, now (s), ttl (s)
-- Returns: "unknown" | "ended" | "cancelled" (ended now) | "asked" (a worker will end it)
local known = redis.call('HMGET', KEYS[1], 'spec', 'state', 'stream', 'entry')
if not known[1] then return 'unknown' end
local state = known[2] or 'queued'
if ENDED[state] then return 'ended' end
if state == 'running' then
  redis.call('HSET', KEYS[1], 'cancel', 1)
  redis.call('PUBLISH', KEYS[5], 'cancel ' .. ARGV[1])
  return 'asked'
end
local k = {job = KEYS[1], events = KEYS[2], result = KEYS[3], results = KEYS[4], channel = ARGV[5]}
conclude(k, ARGV[1], 'cancelled', ARGV[3], ARGV[4], ARGV[6], tonumber(ARGV[7]))
redis.call('ZREM', KEYS[6], ARGV[1])
for i = 7, 9 do
  if known[4] and known[3] == KEYS[i] then
    redis.call('XACK', KEYS[i], ARGV[2], known[4])
    redis.call('XDEL', KEYS[i], known[4])
  end
end
return 'cancelled'
