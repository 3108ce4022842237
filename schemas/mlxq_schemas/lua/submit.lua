-- Accept a job: idempotent by id.
-- KEYS: job, events, jobs stream of its priority, the three jobs streams (depth), result
-- ARGV: id, spec, digest, queued event, channel, now (s), max depth (0: no limit)
-- Returns: {"ok"} | {"duplicate", state} | {"conflict"} | {"full", depth}
local known = redis.call('HMGET', KEYS[1], 'digest', 'state', 'spec')
if known[3] then
  if known[1] == ARGV[3] then return {'duplicate', known[2] or 'queued'} end
  return {'conflict'}
end
local limit = tonumber(ARGV[7])
if limit > 0 then
  local depth = redis.call('XLEN', KEYS[4]) + redis.call('XLEN', KEYS[5]) + redis.call('XLEN', KEYS[6])
  if depth >= limit then return {'full', depth} end
end
-- A server at its memory limit refuses a script at its first write, if that may need memory
-- (DEL never does), and lets all later ones through: so APPEND comes first.
redis.call('APPEND', KEYS[7], '')
-- An entry pushed without its hash may have left a failed end under this id.
redis.call('DEL', KEYS[1], KEYS[2], KEYS[7])
redis.call('HSET', KEYS[1], 'spec', ARGV[2], 'digest', ARGV[3], 'state', 'queued', 'submitted', ARGV[6])
append(KEYS[1], KEYS[2], ARGV[5], ARGV[4])
local entry = redis.call('XADD', KEYS[3], '*', 'id', ARGV[1])
redis.call('HSET', KEYS[1], 'stream', KEYS[3], 'entry', entry)
return {'ok'}
