-- A job that waited to be alone begins: from now on the death of its worker counts.
-- KEYS: job
-- ARGV: epoch
-- Returns: 1, or -1 if the lease is lost
local known = redis.call('HMGET', KEYS[1], 'epoch', 'state')
if known[1] ~= ARGV[1] or known[2] ~= 'running' then return -1 end
redis.call('HDEL', KEYS[1], 'uncounted')
return 1
