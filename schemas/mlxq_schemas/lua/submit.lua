-- Accept a job: idempotent by id.
-- KEYS: job, events, jobs stream of its priority, the three jobs streams (depth), result, delayed
-- ARGV: id, spec, digest, queued event, channel, max depth (0: no limit),
--       due (unix s; not after now: at once)
-- Returns: {"ok"} | {"duplicate", state} | {"conflict"} | {"full", depth}
local known = redis.call('HMGET', KEYS[1], 'digest', 'state', 'spec')
if known[3] then
  if known[1] == ARGV[3] then return {'duplicate', known[2] or 'queued'} end
  return {'conflict'}
end
local limit, depth = tonumber(ARGV[6]), redis.call('ZCARD', KEYS[8])
for i = 4, 6 do depth = depth + redis.call('XLEN', KEYS[i]) end
if limit > 0 and depth >= limit then return {'full', depth} end
check_right('PUBLISH', ARGV[5], '')
-- A server at its memory limit refuses a script at its first write, if that may need memory
-- (DEL never does), and lets all later ones through: so APPEND comes first.
redis.call('APPEND', KEYS[7], '')
-- An entry pushed without its hash may have left a failed end under this id.
redis.call('DEL', KEYS[1], KEYS[2], KEYS[7])
local now = clock()
redis.call('HSET', KEYS[1], 'spec', ARGV[2], 'digest', ARGV[3], 'submitted', seconds(now),
  'life', digits(fresh(now, 0)))
append({job = KEYS[1], events = KEYS[2], channel = ARGV[5], now = now}, ARGV[4])
if tonumber(ARGV[7]) > now then
  redis.call('HSET', KEYS[1], 'state', 'delayed', 'stream', KEYS[3])
  redis.call('ZADD', KEYS[8], ARGV[7], ARGV[1])
else
  enqueue(KEYS[1], KEYS[3], ARGV[1])
end
return {'ok'}
