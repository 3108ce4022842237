-- Refuse a caller who lacks a right that the scripts need.
-- KEYS: any job of the queue
-- ARGV: its channel
-- Returns: 1
local key = KEYS[1]
local calls = {{'PUBLISH', ARGV[1], ''}, {'HINCRBY', key, 'f', '1'}, {'XADD', key, '*', 'f', 'v'},
  {'HSET', key, 'f', 'v'}, {'HDEL', key, 'f'}, {'ZADD', key, '1', 'm'}, {'ZREM', key, 'm'},
  {'SET', key, 'v'}, {'APPEND', key, 'v'}, {'DEL', key}, {'EXPIRE', key, '1'}, {'PERSIST', key},
  {'XACK', key, 'g', '1-0'}, {'XDEL', key, '1-0'}}
for _, call in ipairs(calls) do check_right(unpack(call)) end
return 1
