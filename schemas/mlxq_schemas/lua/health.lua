-- The row by which others see that a worker lives.
-- KEYS: row, workers
-- ARGV: worker, ttl (s), field, value, field, value, ...
-- Returns: the server's time (unix s)
local now, ttl = clock(), tonumber(ARGV[2])
redis.call('HSET', KEYS[1], 'heartbeat', seconds(now), unpack(ARGV, 3))
redis.call('EXPIRE', KEYS[1], ttl)
redis.call('ZADD', KEYS[2], seconds(now + ttl), ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', seconds(now - ttl))
return seconds(now)
