-- A worker that renews its leases shows that the server could be reached.
-- KEYS: beats
-- ARGV: lease (s), whether the worker stood still until now ("1" | "0")
-- Returns: ms without renewal after which an entry may be taken over; -1: none yet
return witness(KEYS[1], tonumber(ARGV[1]), clock(), ARGV[2] == '1')
