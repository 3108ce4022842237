-- Take over entries whose owners missed a whole lease while the server could be reached.
-- In one step: a caller that was frozen in between would judge by a time that has passed.
-- KEYS: jobs stream, beats
-- ARGV: lease (s), group, worker, cursor, count, idle (ms) of entries that were handed back
-- Returns: what XAUTOCLAIM does
local silence = witness(KEYS[2], tonumber(ARGV[1]), clock())
if silence < 0 then silence = ARGV[6] end
return redis.call('XAUTOCLAIM', KEYS[1], ARGV[2], ARGV[3], silence, ARGV[4], 'COUNT', ARGV[5])
