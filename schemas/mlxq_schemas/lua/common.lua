-- Shared by every script: the server's time, and how an event is numbered, kept and sent.
-- KEYS and ARGV are documented at the head of each script.

-- Unix seconds. No worker's or producer's clock decides what is due, and what is deleted.
local function clock()
  local t = redis.call('TIME')
  return tonumber(t[1]) + tonumber(t[2]) / 1000000
end

local function seconds(time)
  return string.format('%.6f', time)
end

-- A whole number as text: Lua would write a large one with an exponent.
local function digits(number)
  return string.format('%.0f', number)
end

-- A number that no earlier life of a key had: microseconds, and above `last`. How far above is
-- chance: before a failover another server may have gone on from the same `last`, its clock ahead.
local function fresh(now, last)
  local micros = math.floor(now * 1000000 + 0.5)
  return math.max(micros, last + 1 + micros % 1000000)
end

-- A count kept in a hash; 0 if somebody else wrote what is none, or what Lua cannot count with.
local function count(value)
  local number = value and tonumber(value)
  if number and number >= 0 and number < 2 ^ 52 and number % 1 == 0 then return number end
  return 0
end

-- An entry id kept in a hash, or nil.
local function entry_id(value)
  return value and string.match(value, '^%d+%-%d+$')
end

-- A script must not end in its middle because a right is missing. The one that users lack by
-- default, to publish, is looked at before the first write; `rights` looks at all of them.
-- (Redis 6.2 cannot say beforehand.)
local function check_right(...)
  if redis.acl_check_cmd and not redis.acl_check_cmd(...) then
    local name, what = ...
    error({err = 'NOPERM this user may not run ' .. name .. ' on ' .. what
      .. ': add the right, as in docs/operations.md'})
  end
end

-- An event travels as a msgpack map of at most 13 fields without `t` and `seq`; both are added
-- here, so that whoever writes, there is neither gap nor repeat, and one clock.
local function numbered(event, seq, now)
  return string.char(string.byte(event, 1) + 2) .. string.sub(event, 2)
    .. '\161t' .. cmsgpack.pack(now) .. '\163seq' .. cmsgpack.pack(seq)
end

-- The fields of a running job whose lease is still the caller's; nil if the lease is lost.
local function held(job, epoch, ...)
  local known = redis.pcall('HMGET', job, 'epoch', 'state', ...)
  if known.err then
    if string.find(known.err, 'WRONGTYPE') then return nil end  -- overwritten: no job any more
    known = redis.call('HMGET', job, 'epoch', 'state', ...)
  end
  if known[1] ~= epoch or known[2] ~= 'running' then return nil end
  return {unpack(known, 3)}
end

-- A key of the whole queue that somebody overwrote stops a script here, before its first write:
-- nothing is half done, and all of it can be done once the key is mended.
local function check_streams(...)
  for _, key in ipairs({...}) do redis.call('XLEN', key) end
end

-- k: job, events, channel, now
local function append(k, event)
  local seq = redis.call('HINCRBY', k.job, 'seq', 1) - 1
  local data = numbered(event, seq, k.now)
  local entry = digits(seq + 1) .. '-0'
  local kept = redis.pcall('XADD', k.events, entry, 'e', data)
  if type(kept) == 'table' and kept.err then
    -- Another type, or entries that no script wrote: not this job's events, and in their way.
    if string.find(kept.err, 'WRONGTYPE') or string.find(kept.err, 'equal or smaller') then
      redis.call('DEL', k.events)
    end
    redis.call('XADD', k.events, entry, 'e', data)
  end
  redis.call('PUBLISH', k.channel, data)
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
-- k: also result, results
local function conclude(k, id, state, event, result, ttl)
  local seq = append(k, event)
  redis.call('SET', k.result, numbered(result, seq, k.now), 'EX', ttl)
  redis.call('XADD', k.results, 'MINID', digits((k.now - ttl) * 1000), '*', 'id', id, 'state', state)
  redis.call('HSET', k.job, 'state', state, 'ended', seconds(k.now))
  redis.call('EXPIRE', k.job, ttl)
  redis.call('EXPIRE', k.events, ttl)
end

-- A dead letter. `life` tells it from letters of other jobs that had the same id.
local function bury(dead, ttl, now, id, code, message, attempts, life)
  redis.call('XADD', dead, 'MINID', digits((now - ttl) * 1000), '*', 'id', id, 'code', code,
    'message', message, 'attempts', attempts, 't', seconds(now), 'life', life)
end

-- The fields of a dead letter, or nil.
local function letter_of(dead, row)
  local rows = redis.call('XRANGE', dead, row, row)
  if #rows == 0 then return nil end
  local letter = {}
  for i = 1, #rows[1][2], 2 do letter[rows[1][2][i]] = rows[1][2][i + 1] end
  return letter
end

local function same_life(letter, life)
  return not letter.life or not life or letter.life == life
end

-- The gaps kept in the beats; nil if somebody else wrote what is none.
local function gaps_of(text)
  local good, gaps = pcall(cjson.decode, text or '[]')
  if not good or type(gaps) ~= 'table' then return nil end
  for i = 1, #gaps do
    local gap = gaps[i]
    if type(gap) ~= 'table' or type(gap[1]) ~= 'number' or type(gap[2]) ~= 'number' then return nil end
  end
  return gaps
end

-- A witness of the server's time: leases run out only while witnesses come, so that a pause of
-- the server, or of all its connections, is nobody's death. A gap is a time without a witness.
-- The longest lease of those who witness holds for all: its owner renews no more often than that.
-- Who `woke` from a sleep of the machine that others shared may be the first to: for a lease no
-- time counts, so that they can renew. A worker that wakes all the time puts off half the time.
-- Returns the ms without renewal that hold a whole lease of witnessed time; -1: none do yet.
local function witness(key, lease, now, woke)
  local known = redis.call('HMGET', key, 'last', 'lease', 'gaps', 'longest', 'longest_at', 'woke')
  local last, gaps = tonumber(known[1] or ''), gaps_of(known[3])
  local shortest = tonumber(known[2] or '')
  shortest = shortest and shortest > 0 and math.min(lease, shortest) or lease
  local longest, longest_at = tonumber(known[4] or ''), tonumber(known[5] or '')
  if not (longest and longest_at and longest > lease and now - longest_at < longest) then
    longest, longest_at = lease, now
  end
  if not last or not gaps or now < last then
    gaps, shortest = {{0, now}}, lease
  elseif now - last > shortest / 2 then
    gaps[#gaps + 1], shortest = {last, now}, lease
    if #gaps > 32 then table.remove(gaps, 1) end
  end
  redis.call('HSET', key, 'last', seconds(now), 'lease', shortest, 'gaps', cjson.encode(gaps),
    'longest', longest, 'longest_at', seconds(longest_at))
  redis.call('EXPIRE', key, 86400)
  local awake = now - (tonumber(known[6] or '') or -math.huge)
  if woke and not (awake >= 0 and awake <= 2 * longest) then
    redis.call('HSET', key, 'woke', seconds(now))
    awake = 0
  end
  if awake >= 0 and awake < longest then return -1 end
  local need, at = longest, now
  for i = #gaps, 1, -1 do
    local from, to = gaps[i][1], gaps[i][2]
    if at - to >= need then break end
    need, at = need - (at - to), from
  end
  if at - need <= 0 then return -1 end
  return math.ceil((now - at + need) * 1000)
end
