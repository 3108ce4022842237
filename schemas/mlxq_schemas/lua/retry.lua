-- Put a running job off, in one step: its last events, a retrying event, its time, entry removed.
-- KEYS: job, events, jobs stream, delayed
-- ARGV: epoch, id, channel, retrying event, due (unix s), group, entry,
--       errors (1 after an error, 0 if its time has only not come), event, event, ...
--       (not yet appended; they come before the retrying event)
-- Returns: 1, or -1 if the lease is lost
local known = held(KEYS[1], ARGV[1], 'cancel')
if not known then return -1 end
check_right('PUBLISH', ARGV[3], '')
redis.call('ZCARD', KEYS[4])
local k = {job = KEYS[1], events = KEYS[2], channel = ARGV[3], now = clock()}
for i = 9, #ARGV do append(k, ARGV[i]) end
append(k, ARGV[4])
redis.call('HINCRBY', KEYS[1], 'errors', ARGV[8])
redis.call('HSET', KEYS[1], 'state', 'delayed')
redis.call('HDEL', KEYS[1], 'entry')
-- A cancel that this worker has not heard of yet need not wait.
redis.call('ZADD', KEYS[4], known[1] == '1' and 0 or ARGV[5], ARGV[2])
redis.call('XACK', KEYS[3], ARGV[6], ARGV[7])
redis.call('XDEL', KEYS[3], ARGV[7])
return 1
