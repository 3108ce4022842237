-- Renew leases: reset the idle time of entries that this worker still owns.
-- An unfenced XCLAIM would steal back what another worker took over meanwhile.
-- KEYS: jobs stream
-- ARGV: group, worker, entry, entry, ...
-- Returns: the entries that are no longer ours
local lost = {}
for i = 3, #ARGV do
  local pending = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1)
  if #pending == 1 and pending[1][2] == ARGV[2] then
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[i], 'JUSTID')
  else
    lost[#lost + 1] = ARGV[i]
  end
end
return lost
