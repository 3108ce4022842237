-- Prolong the lives of blobs; what is kept longer already stays so.
-- KEYS: blobs
-- ARGV: ttl (s), slack (s): a life that is no more than so much shorter than it should be is left,
--       and for each blob the last moment at which a job may need it (unix s; 0: none is known)
-- Returns: the places in KEYS (from 1) of those that are not there
local DAY, CENTURY = 86400, 3155760000
local ttl, slack, now = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(redis.call('TIME')[1])
local missing = {}
for i, blob in ipairs(KEYS) do
  local wanted = math.max(ttl, (tonumber(ARGV[i + 2]) or 0) + DAY - now)
  wanted = math.ceil(math.min(wanted, CENTURY))
  local left = redis.pcall('TTL', blob)
  if type(left) ~= 'number' then left = 0 end  -- rights of old may lack TTL
  local short = left ~= -1 and left < wanted - slack
  if left == -2 or (short and redis.call('EXPIRE', blob, wanted) == 0) then
    missing[#missing + 1] = i
  end
end
return missing
