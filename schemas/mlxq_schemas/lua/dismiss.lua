-- Take the names of workers that ended out of the group of a jobs stream; one with entries pending
-- stays, for they would be lost with it.
-- KEYS: jobs stream
-- ARGV: group, worker, worker, ...
-- Returns: how many names are gone
local gone = 0
for i = 2, #ARGV do
  if #redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, ARGV[i]) == 0 then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[i])
    gone = gone + 1
  end
end
return gone
