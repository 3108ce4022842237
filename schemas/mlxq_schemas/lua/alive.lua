-- A worker stood still while its lease ran out, but lives: the death counted for it is taken back.
-- KEYS: job
-- ARGV: epoch
-- Returns: 1, or 0 if none was counted
-- Taken over, but not claimed yet: whoever does so is not to count it.
if held(KEYS[1], ARGV[1]) then
  redis.call('HSET', KEYS[1], 'uncounted', 1)
  return 1
end
local known = redis.pcall('HMGET', KEYS[1], 'deaths', 'mourned')
if known.err then return 0 end
local others, found = {}, false
for epoch in string.gmatch(known[2] or '', '%d+') do
  if epoch == ARGV[1] then found = true else others[#others + 1] = epoch end
end
if not found then return 0 end
redis.call('HSET', KEYS[1], 'deaths', digits(math.max(0, count(known[1]) - 1)),
  'mourned', table.concat(others, ' '))
return 1
