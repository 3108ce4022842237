-- Release a lock, if it is still the caller's.
-- KEYS: lock
-- ARGV: its value
-- Returns: 1, or 0 if it had run out
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
