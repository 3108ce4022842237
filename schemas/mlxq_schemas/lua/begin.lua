-- A job that waited to be alone begins: from now on the death of its worker counts.
-- KEYS: job
-- ARGV: epoch
-- Returns: 1, or -1 if the lease is lost
if not held(KEYS[1], ARGV[1]) then return -1 end
redis.call('HDEL', KEYS[1], 'uncounted')
return 1
