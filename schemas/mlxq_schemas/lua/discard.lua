-- Bury an entry that names no job: there is nobody to send an event to.
-- KEYS: dead, jobs stream
-- ARGV: id (what stands in its place, maybe ""), code, message, dead-letter ttl (s), group, entry
-- Returns: 1
bury(KEYS[1], tonumber(ARGV[4]), clock(), ARGV[1], ARGV[2], ARGV[3], 1, '')
redis.call('XACK', KEYS[2], ARGV[5], ARGV[6])
redis.call('XDEL', KEYS[2], ARGV[6])
return 1
