-- Shared by every script: how an event is numbered, kept and sent.
-- KEYS and ARGV are documented at the head of each script.

-- An event travels as a msgpack map of at most 14 fields without `seq`; the number
-- is added here so that whoever writes, there is neither gap nor repeat.
local function numbered(event, seq)
  return string.char(string.byte(event, 1) + 1) .. string.sub(event, 2) .. '\163seq' .. cmsgpack.pack(seq)
end

local function append(job, events, channel, event)
  local seq = redis.call('HINCRBY', job, 'seq', 1) - 1
  local data = numbered(event, seq)
  redis.call('XADD', events, (seq + 1) .. '-0', 'e', data)
  redis.call('PUBLISH', channel, data)
  return seq
end

-- States of a job hash: queued (or absent: pushed by hand), delayed, running, and four that end it.
local ENDED = {finished = true, failed = true, cancelled = true, expired = true}

-- The job waits in a stream from now on.
local function enqueue(job, stream, id)
  local entry = redis.call('XADD', stream, '*', 'id', id)
  redis.call('HSET', job, 'state', 'queued', 'stream', stream, 'entry', entry)
end

-- The end of a job, whoever brings it: terminal event, result, results row, TTLs.
local function conclude(k, id, state, event, result, now, ttl)
  local seq = append(k.job, k.events, k.channel, event)
  redis.call('SET', k.result, numbered(result, seq), 'EX', ttl)
  redis.call('XADD', k.results, 'MINID', '~', math.floor((tonumber(now) - ttl) * 1000), '*', 'id', id, 'state', state)
  redis.call('HSET', k.job, 'state', state, 'ended', now)
  redis.call('EXPIRE', k.job, ttl)
  redis.call('EXPIRE', k.events, ttl)
end
