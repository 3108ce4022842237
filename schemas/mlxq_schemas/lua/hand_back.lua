-- Give a running job back unfinished (shutdown): its entry becomes claimable at once.
-- The raised epoch fences this worker; the mark keeps the next claim from counting a death.
-- KEYS: job, jobs stream
-- ARGV: epoch, group, worker, entry, idle (ms, above any lease)
-- Returns: 1, or -1 if the lease is lost
if not held(KEYS[1], ARGV[1]) then return -1 end
redis.call('HSET', KEYS[1], 'epoch', digits(fresh(clock(), tonumber(ARGV[1]))), 'uncounted', 1)
-- Who has taken the entry over meanwhile keeps it, and is about to claim.
local pending = redis.call('XPENDING', KEYS[2], ARGV[2], ARGV[4], ARGV[4], 1)
if #pending == 1 and pending[1][2] == ARGV[3] then
  redis.call('XCLAIM', KEYS[2], ARGV[2], ARGV[3], 0, ARGV[4], 'IDLE', ARGV[5], 'JUSTID')
end
return 1
