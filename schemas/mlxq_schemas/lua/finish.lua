-- End a running job in one step: its last events, terminal event, result, results row, entry
-- removed, and for a failure its dead letter. Never half: under OOM all of it is refused.
-- KEYS: job, events, result, results, dead, jobs stream
-- ARGV: epoch, id, state, terminal event, result, channel, ttl (s), group, entry,
--       code, message (both "" unless failed), dead-letter ttl (s), event, event, ...
--       (not yet appended; they come before the terminal event)
-- Returns: 1, or -1 if the lease is lost
local known = held(KEYS[1], ARGV[1], 'attempt', 'life')
if not known then return -1 end
check_right('PUBLISH', ARGV[6], '')
check_streams(KEYS[4], KEYS[5])
local k = {job = KEYS[1], events = KEYS[2], result = KEYS[3], results = KEYS[4], channel = ARGV[6], now = clock()}
for i = 13, #ARGV do append(k, ARGV[i]) end
conclude(k, ARGV[2], ARGV[3], ARGV[4], ARGV[5], tonumber(ARGV[7]))
if ARGV[10] ~= '' then
  bury(KEYS[5], tonumber(ARGV[12]), k.now, ARGV[2], ARGV[10], ARGV[11], known[1] or '0', known[2] or '')
  -- Its events too: a job that is sent again goes on after them.
  redis.call('EXPIRE', KEYS[1], ARGV[12])
  redis.call('EXPIRE', KEYS[2], ARGV[12])
end
redis.call('XACK', KEYS[6], ARGV[8], ARGV[9])
redis.call('XDEL', KEYS[6], ARGV[9])
return 1
