-- A worker takes a job that it has read: a new lease epoch, which fences all earlier ones.
-- KEYS: job, events, jobs stream
-- ARGV: id, worker, entry, group, now (s), "1" if an earlier process of this name had it
-- Returns: {"gone"} (ended, delayed, or another entry's job: this entry is removed)
--        | {"missing", epoch} (no spec; the caller must fail it)
--        | {word, epoch, attempt, deaths, seq, spec, submitted, cancel, errors}
--          where word is "ok", or "alone": the job was in flight when two workers died, so it may
--          `begin` only once its worker has nothing else in flight
local known = redis.call('HMGET', KEYS[1], 'state', 'spec', 'submitted', 'cancel', 'uncounted',
  'stream', 'entry', 'worker')
local state = known[1]
-- A job may be pushed twice by hand: while its first entry stands, a second one is nothing.
local second = state == 'running' and known[6] == KEYS[3] and known[7] ~= ARGV[3]
  and #redis.call('XRANGE', KEYS[3], known[7], known[7]) == 1
if second or state == 'delayed' or (state and ENDED[state]) then
  redis.call('XACK', KEYS[3], ARGV[4], ARGV[3])
  redis.call('XDEL', KEYS[3], ARGV[3])
  return {'gone'}
end
local epoch = redis.call('HINCRBY', KEYS[1], 'epoch', 1)
local attempt = redis.call('HINCRBY', KEYS[1], 'attempt', 1)
local died = state == 'running' and not known[5] and (known[8] ~= ARGV[2] or ARGV[6] == '1')
local deaths = redis.call('HINCRBY', KEYS[1], 'deaths', died and 1 or 0)
redis.call('HDEL', KEYS[1], 'uncounted')
redis.call('HSET', KEYS[1], 'state', 'running', 'worker', ARGV[2], 'started', ARGV[5], 'stream', KEYS[3], 'entry', ARGV[3])
if not known[2] then return {'missing', epoch} end
-- While it waits to be alone its worker may die of another job: that says nothing about this one.
if deaths == 2 then redis.call('HSET', KEYS[1], 'uncounted', 1) end
local counts = redis.call('HMGET', KEYS[1], 'seq', 'errors')
return {deaths == 2 and 'alone' or 'ok', epoch, attempt, deaths, tonumber(counts[1] or '0'), known[2],
  known[3] or ARGV[5], known[4] or '0', tonumber(counts[2] or '0')}
