-- Cancel a job: end it here if no worker has it, else ask the worker.
-- KEYS: job, events, result, results, control, delayed, stray, the three jobs streams
-- ARGV: id, group, cancelled event, cancelled result, channel, ttl (s), stray ttl (s)
-- Returns: "unknown" | "ended" | "cancelled" (ended now) | "asked" (a worker will end it)
local known = redis.call('HMGET', KEYS[1], 'spec', 'state', 'stream', 'entry', 'life')
if not known[1] then return 'unknown' end
local state, entry = known[2] or 'queued', entry_id(known[4])
if ENDED[state] then return 'ended' end
if state == 'running' then
  redis.call('HSET', KEYS[1], 'cancel', 1)
  redis.call('PUBLISH', KEYS[5], 'cancel ' .. ARGV[1] .. ' ' .. (known[5] or ''))
  return 'asked'
end
check_right('PUBLISH', ARGV[5], '')
check_streams(KEYS[4])
redis.call('ZCARD', KEYS[6])
redis.call('HSET', KEYS[1], 'seq', digits(count(redis.call('HGET', KEYS[1], 'seq'))))
local k = {job = KEYS[1], events = KEYS[2], result = KEYS[3], results = KEYS[4], channel = ARGV[5], now = clock()}
conclude(k, ARGV[1], 'cancelled', ARGV[3], ARGV[4], tonumber(ARGV[6]))
local waited = redis.call('ZREM', KEYS[6], ARGV[1])
for i = 8, 10 do
  if entry and known[3] == KEYS[i] then
    redis.call('XACK', KEYS[i], ARGV[2], entry)
    redis.call('XDEL', KEYS[i], entry)
  end
end
-- Pushed by hand: its entry is somewhere, and may be read when this record has gone.
if waited == 0 and not entry then redis.call('SET', KEYS[7], 1, 'EX', ARGV[7]) end
return 'cancelled'
