-- Give a running job back unfinished (shutdown): its entry becomes claimable at once.
-- The raised epoch fences this worker; the mark keeps the next claim from counting a death.
-- KEYS: job, jobs stream
-- ARGV: epoch, group, worker, entry, idle (ms, above any lease)
-- Returns: 1, or -1 if the lease is lost
local known = redis.call('HMGET', KEYS[1], 'epoch', 'state')
if known[1] ~= ARGV[1] or known[2] ~= 'running' then return -1 end
redis.call('HINCRBY', KEYS[1], 'epoch', 1)
redis.call('HSET', KEYS[1], 'uncounted', 1)
redis.call('XCLAIM', KEYS[2], ARGV[2], ARGV[3], 0, ARGV[4], 'IDLE', ARGV[5], 'JUSTID')
return 1
