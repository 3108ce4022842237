-- Send a dead job again: its text begins anew, its counters too; `seq` and `epoch` go on.
-- KEYS: job, events, result, dead, the three jobs streams, the most urgent first
-- ARGV: id, row (its entry in `dead`), retrying event, channel
-- Returns: "ok" | "gone" (no such row) | "lost" (its record is gone) | "alive" (it is not dead)
local letter = letter_of(KEYS[4], ARGV[2])
if not letter then return 'gone' end
local known = redis.call('HMGET', KEYS[1], 'spec', 'state', 'stream', 'life')
-- The id may stand for another job by now, which has a letter of its own if it died.
if not known[1] or not same_life(letter, known[4]) then return 'lost' end
if known[2] ~= 'failed' then return 'alive' end
local stream = KEYS[6]
for i = 5, 7 do
  if known[3] == KEYS[i] then stream = KEYS[i] end
end
check_right('PUBLISH', ARGV[4], '')
check_streams(stream)
local now = clock()
append({job = KEYS[1], events = KEYS[2], channel = ARGV[4], now = now}, ARGV[3])
redis.call('PERSIST', KEYS[1])
redis.call('PERSIST', KEYS[2])
redis.call('DEL', KEYS[3])
redis.call('HDEL', KEYS[1], 'attempt', 'deaths', 'mourned', 'errors', 'cancel', 'started', 'ended',
  'worker')
redis.call('HSET', KEYS[1], 'submitted', seconds(now))
enqueue(KEYS[1], stream, ARGV[1])
redis.call('XDEL', KEYS[4], ARGV[2])
return 'ok'
