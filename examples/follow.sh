#!/bin/sh
# Print the text of a job as it is made, with redis-cli alone: the server unpacks the events.
#
# follow.sh JOB_ID

set -eu
queue="mlxq:{${MLXQ_QUEUE:-captions}}"
redis() { redis-cli -u "${MLXQ_REDIS_URL:-redis://127.0.0.1:6379/0}" --raw "$@"; }

# From entry ARGV[1] on: the number of the next entry, the type of the last event, the new text.
unpack="
local at, kind, text = ARGV[1], '-', {}
for _, row in ipairs(redis.call('XRANGE', KEYS[1], at .. '-0', '+')) do
  local event = cmsgpack.unpack(row[2][2])
  at, kind = event.seq + 2, event.type
  if kind == 'token' then text[#text + 1] = event.text end
end
return {tostring(at), kind, table.concat(text)}"

next=1
while :; do
  # The dot at the end keeps line breaks that belong to the text.
  answer="$(redis EVAL "$unpack" 1 "$queue:events:$1" "$next" && echo .)"
  next="$(printf '%s' "$answer" | sed -n 1p)"
  type="$(printf '%s' "$answer" | sed -n 2p)"
  text="$(printf '%s' "$answer" | sed 1,2d && echo .)"
  text="${text%?}"
  printf '%s' "${text%??}"
  case "$type" in
    finished) echo; exit 0 ;;
    failed | cancelled | expired) echo; exit 1 ;;
  esac
  # Return when there is a new event, or after a second.
  redis XREAD BLOCK 1000 COUNT 1 STREAMS "$queue:events:$1" "$((next - 1))-0" >/dev/null
done
