-- End a running job in one step: its last events, terminal event, result, results row, entry
-- removed, and for a failure its dead letter. Never half: under OOM all of it is refused.
-- KEYS: job, events, result, results, dead, jobs stream
-- ARGV: epoch, id, state, terminal event, result, channel, now (s), ttl (s), group, entry,
--       code, message (both "" unless failed), dead-letter ttl (s), event, event, ...
--       (not yet appended; they come before the terminal event)
-- Returns: 1, or -1 if the lease is lost
local known = redis.call('HMGET', KEYS[1], 'epoch', 'state', 'attempt')
if known[1] ~= ARGV[1] or known[2] ~= 'running' then return -1 end
local k = {job = KEYS[1], events = KEYS[2], result = KEYS[3], results = KEYS[4], channel = ARGV[6]}
for i = 14, #ARGV do append(KEYS[1], KEYS[2], ARGV[6], ARGV[i]) end
conclude(k, ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[7], tonumber(ARGV[8]))
if ARGV[11] ~= '' then
  local oldest = math.floor((tonumber(ARGV[7]) - tonumber(ARGV[13])) * 1000)
  redis.call('XADD', KEYS[5], 'MINID', '~', oldest, '*', 'id', ARGV[2], 'code', ARGV[11],
    'message', ARGV[12], 'attempts', known[3] or '0', 't', ARGV[7])
  redis.call('EXPIRE', KEYS[1], ARGV[13])
end
redis.call('XACK', KEYS[6], ARGV[9], ARGV[10])
redis.call('XDEL', KEYS[6], ARGV[10])
return 1
