-- A worker takes a job that it has read: a new lease epoch, which fences all earlier ones.
-- KEYS: job, events, result, stray, dead, the three jobs streams
-- ARGV: id, worker, stream, entry, group, how the worker came by the entry ("new": never read
--       before | "again": one of its own, read once more | "over": its lease ran out | "left": an
--       earlier process of this name left it), ttl (s) of the records of ended jobs, dead-letter
--       ttl (s)
-- Returns: {"gone"} (ended, delayed, or another entry's job: this entry is removed)
--        | {"missing", epoch, submitted} (no spec; the caller must fail it)
--        | {word, epoch, attempt, deaths, seq, spec, submitted, cancel, errors, life}
--          where word is "ok", or "alone": the job was in flight when two workers died, so it may
--          `begin` only once its worker has nothing else in flight
local now = clock()
local fields = {'state', 'spec', 'submitted', 'cancel', 'uncounted', 'stream', 'entry', 'worker',
  'epoch', 'attempt', 'deaths', 'mourned', 'seq', 'errors', 'life'}
local found = redis.pcall('HMGET', KEYS[1], unpack(fields))
if found.err then
  -- The entry calls it a job, but it is none: it ends as one that has no spec.
  if string.find(found.err, 'WRONGTYPE') then redis.call('DEL', KEYS[1]) end
  found = redis.call('HMGET', KEYS[1], unpack(fields))
end
local known = {}
for i, name in ipairs(fields) do known[name] = found[i] end
local state, stream, entry = known.state, ARGV[3], ARGV[4]

local function drop()
  redis.call('XACK', stream, ARGV[5], entry)
  redis.call('XDEL', stream, entry)
  return {'gone'}
end

if not state and not known.spec then
  if redis.call('DEL', KEYS[4]) == 1 then return drop() end
  -- A record that ended after this entry came may have expired since: no second end for it.
  if now - tonumber(string.match(entry, '^%d+')) / 1000 > tonumber(ARGV[7]) then
    bury(KEYS[5], tonumber(ARGV[8]), now, ARGV[1], 'bad_message',
      'the queue holds no job ' .. ARGV[1] .. ': its record expired, or was never written', 0, '')
    return drop()
  end
end

-- A job may be pushed twice by hand: while its first entry stands, a second one is nothing.
local first = entry_id(known.entry)
local ours = known.stream == stream and first == entry
local second = false
for i = 6, 8 do
  if state == 'running' and first and not ours and known.stream == KEYS[i] then
    second = #redis.call('XRANGE', KEYS[i], first, first) == 1
  end
end
if second or state == 'delayed' or (state and ENDED[state]) then return drop() end

local epoch = fresh(now, count(known.epoch))
local attempt = count(known.attempt) + 1
-- Only who lost this very entry has died: an owner whose entry was deleted may well live, and so
-- does a worker that takes over what it had itself dropped.
local died = state == 'running' and ours and not known.uncounted
  and (ARGV[6] == 'left' or (ARGV[6] ~= 'new' and known.worker ~= ARGV[2]))
local deaths = count(known.deaths) + (died and 1 or 0)
local seq, errors = count(known.seq), count(known.errors)
local life = known.life and string.match(known.life, '^%d+$') or digits(epoch)
local submitted = tonumber(known.submitted or '')
if not (submitted and submitted > 0 and submitted <= now) then submitted = now end
redis.call('HSET', KEYS[1], 'state', 'running', 'worker', ARGV[2], 'started', seconds(now),
  'stream', stream, 'entry', entry, 'epoch', digits(epoch), 'attempt', digits(attempt),
  'deaths', digits(deaths), 'seq', digits(seq), 'errors', digits(errors), 'life', life,
  'submitted', seconds(submitted))
redis.call('HDEL', KEYS[1], 'uncounted')
-- Whose death it was: an owner that only slept takes it back.
if died then
  redis.call('HSET', KEYS[1], 'mourned', (known.mourned or '') .. ' ' .. (known.epoch or ''))
end
-- Pushed by hand under an id that was used before: nothing of that life belongs to this one.
if not known.life and seq == 0 then redis.call('DEL', KEYS[2], KEYS[3]) end
if not known.spec then return {'missing', epoch, seconds(submitted)} end
-- While it waits to be alone its worker may die of another job: that says nothing about this one.
if deaths == 2 then redis.call('HSET', KEYS[1], 'uncounted', 1) end
return {deaths == 2 and 'alone' or 'ok', epoch, attempt, deaths, seq, known.spec,
  seconds(submitted), known.cancel or '0', errors, life}
