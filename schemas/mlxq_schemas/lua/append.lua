-- Append events of a running job, if the lease still holds.
-- KEYS: job, events
-- ARGV: epoch, channel, event, event, ...
-- Returns: the next seq, or -1 if the lease is lost
local known = redis.call('HMGET', KEYS[1], 'epoch', 'state')
if known[1] ~= ARGV[1] or known[2] ~= 'running' then return -1 end
for i = 3, #ARGV do append(KEYS[1], KEYS[2], ARGV[2], ARGV[i]) end
return tonumber(redis.call('HGET', KEYS[1], 'seq') or '0')
