-- Drop a dead letter, and with it all that is kept of its job.
-- KEYS: job, events, result, dead
-- ARGV: row (its entry in `dead`)
-- Returns: 1, or 0 if there is no such row
local letter = letter_of(KEYS[4], ARGV[1])
if not letter then return 0 end
redis.call('XDEL', KEYS[4], ARGV[1])
local known = redis.call('HMGET', KEYS[1], 'state', 'life')
if known[1] == 'failed' and same_life(letter, known[2]) then
  redis.call('DEL', KEYS[1], KEYS[2], KEYS[3])
end
return 1
