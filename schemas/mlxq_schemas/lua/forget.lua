-- Drop a dead letter, and with it all that is kept of its job.
-- KEYS: job, events, result, dead
-- ARGV: row (its entry in `dead`)
-- Returns: 1, or 0 if there is no such row
if redis.call('XDEL', KEYS[4], ARGV[1]) == 0 then return 0 end
if redis.call('HGET', KEYS[1], 'state') == 'failed' then
  redis.call('DEL', KEYS[1], KEYS[2], KEYS[3])
end
return 1
