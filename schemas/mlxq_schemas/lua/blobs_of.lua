-- Which blobs jobs need that wait, run or may be sent again. No producer says so in the job's
-- hash: the spec is searched, of large ones only once.
-- KEYS: jobs
-- Returns: for each job the sha256s, joined by blanks ("" for none, or no such job); fewer than
--          asked for, but at least one, where much had to be searched
local MUCH, LARGE = 8 * 1024 * 1024, 16 * 1024
local SHA = '^' .. string.rep('[0-9a-f]', 64)

local function named(spec)
  local found, seen, at = {}, {}, 1
  while true do
    local _, last = string.find(spec, 'blob:', at, true)
    if not last then return table.concat(found, ' ') end
    local sha = string.match(spec, SHA, last + 1)
    if sha and not seen[sha] then
      seen[sha] = true
      found[#found + 1] = sha
    end
    at = last + 1
  end
end

local answers, searched = {}, 0
for i, job in ipairs(KEYS) do
  if searched > MUCH then break end
  local known = redis.pcall('HMGET', job, 'blobs', 'state')
  local over = known[2] and ENDED[known[2]] and known[2] ~= 'failed'
  if known.err or over then
    answers[i] = ''
  elseif known[1] then
    answers[i] = known[1]
  else
    local spec = redis.call('HGET', job, 'spec') or ''
    answers[i] = named(spec)
    searched = searched + #spec
    -- A full server refuses this: then it is searched again.
    if #spec > LARGE then redis.pcall('HSET', job, 'blobs', answers[i]) end
  end
end
return answers
