-- Append events of a running job, if the lease still holds.
-- KEYS: job, events
-- ARGV: epoch, channel, event, event, ...
-- Returns: the next seq, or -1 if the lease is lost
if not held(KEYS[1], ARGV[1]) then return -1 end
local k = {job = KEYS[1], events = KEYS[2], channel = ARGV[2], now = clock()}
for i = 3, #ARGV do append(k, ARGV[i]) end
return count(redis.call('HGET', KEYS[1], 'seq'))
