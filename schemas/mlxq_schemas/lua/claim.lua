-- A worker takes a job that it has read: a new lease epoch, which fences all earlier ones.
-- KEYS: job, events, jobs stream
-- ARGV: id, worker, entry, group, now (s), "1" if taken over from another worker
-- Returns: {"gone"} (ended, or another entry's job: this entry is removed)
--        | {"missing", epoch} (no spec; the caller must fail it)
--        | {"ok", epoch, attempt, deaths, seq, spec, submitted, cancel}
local known = redis.call('HMGET', KEYS[1], 'state', 'spec', 'submitted', 'cancel', 'handed_back',
  'stream', 'entry')
-- A job may be pushed twice by hand: while its first entry stands, a second one is nothing.
local second = known[1] == 'running' and known[6] == KEYS[3] and known[7] ~= ARGV[3]
  and #redis.call('XRANGE', KEYS[3], known[7], known[7]) == 1
if second or (known[1] and ENDED[known[1]]) then
  redis.call('XACK', KEYS[3], ARGV[4], ARGV[3])
  redis.call('XDEL', KEYS[3], ARGV[3])
  return {'gone'}
end
local epoch = redis.call('HINCRBY', KEYS[1], 'epoch', 1)
local attempt = redis.call('HINCRBY', KEYS[1], 'attempt', 1)
local deaths = 0
if ARGV[6] == '1' and known[1] == 'running' and not known[5] then
  deaths = redis.call('HINCRBY', KEYS[1], 'deaths', 1)
else
  deaths = tonumber(redis.call('HGET', KEYS[1], 'deaths') or '0')
end
redis.call('HDEL', KEYS[1], 'handed_back')
redis.call('HSET', KEYS[1], 'state', 'running', 'worker', ARGV[2], 'started', ARGV[5], 'stream', KEYS[3], 'entry', ARGV[3])
if not known[2] then return {'missing', epoch} end
local seq = tonumber(redis.call('HGET', KEYS[1], 'seq') or '0')
return {'ok', epoch, attempt, deaths, seq, known[2], known[3] or ARGV[5], known[4] or '0'}
