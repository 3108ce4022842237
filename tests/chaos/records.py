"""What a server holds of each job, read from outside: plain redis-py and msgpack, none of our code.

An id may be used again, so what is held of it belongs to one of its *lives*: the job that a
producer sent under it at one time. Each life bears its number in the job's metadata. A FLUSHALL
begins a new *age* of the server, whose number stands beside the queue.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

import msgpack
import redis

AGE: Final = "chaos:age"
"""Key: how often the server was flushed."""
ENDS: Final = {"finished", "failed", "cancelled", "expired"}

_HELD: Final = """
local function held(prefix, id)
  return {id, redis.call('HGETALL', prefix .. 'job:' .. id),
    redis.call('XRANGE', prefix .. 'events:' .. id, '-', '+'),
    redis.call('GET', prefix .. 'result:' .. id)}
end
"""
_SNAPSHOT: Final = (
    _HELD
    + """
local prefix, ids, seen = ARGV[1], {}, {}
for _, kind in ipairs({'job:', 'events:', 'result:'}) do
  for _, key in ipairs(redis.call('KEYS', prefix .. kind .. '*')) do
    local id = string.sub(key, #prefix + #kind + 1)
    if not seen[id] then seen[id] = true; ids[#ids + 1] = id end
  end
end
local records = {}
for i, id in ipairs(ids) do records[i] = held(prefix, id) end
local found = {redis.call('GET', ARGV[2]) or '0', records,
  redis.call('XRANGE', prefix .. 'results', '-', '+'),
  redis.call('XRANGE', prefix .. 'dead', '-', '+')}
if ARGV[3] ~= '' then
  redis.call('FLUSHALL')
  redis.call('SET', ARGV[2], ARGV[3])
end
return found
"""
)
_ONE: Final = _HELD + "return {redis.call('GET', ARGV[2]) or '0', held(ARGV[1], ARGV[3])}"
_EXPIRE: Final = """
if redis.call('HGET', KEYS[1], 'spec') ~= ARGV[1] then return 0 end
for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, ARGV[2]) end
return 1
"""


@dataclass(frozen=True)
class Record:
    """What the server holds of one id: its hash, its events with their entry ids, its result."""

    job_id: str
    kept: dict[str, bytes]
    entries: tuple[tuple[str, bytes], ...] = ()
    result: bytes | None = None

    @property
    def spec(self) -> bytes | None:
        return self.kept.get("spec")

    @property
    def life(self) -> int:
        """The number of the life that it is of; 0 if it does not say."""
        spec = self.spec or b"\xc0"
        try:
            value = json.loads(spec) if spec[:1] == b"{" else msgpack.unpackb(spec)
        except (ValueError, msgpack.UnpackException):
            return 0
        metadata = value.get("metadata") if isinstance(value, dict) else None
        return int(metadata.get("life", 0)) if isinstance(metadata, dict) else 0

    @property
    def events(self) -> list[dict[str, Any]]:
        return [msgpack.unpackb(data) for _, data in self.entries]

    def as_text(self) -> str:
        """For a line of a diary."""
        entries = [list(entry) for entry in self.entries]
        packed = msgpack.packb([self.job_id, self.kept, entries, self.result])
        return base64.b64encode(cast("bytes", packed)).decode()

    @classmethod
    def of_text(cls, text: str) -> Record:
        job_id, kept, entries, result = msgpack.unpackb(base64.b64decode(text))
        return cls(job_id, kept, tuple((name, data) for name, data in entries), result)


@dataclass(frozen=True)
class Snapshot:
    """One queue at one moment. ``rows``: (id, state) in ``results``; ``dead``: (id, code)."""

    age: int = 0
    records: list[Record] = field(default_factory=list[Record])
    rows: Counter[str] = field(default_factory=Counter[str])
    dead: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])


def snapshot(client: redis.Redis, queue: str) -> Snapshot:
    """All that a queue holds, in one step."""
    return _snapshot(client, queue, "")


def flush(client: redis.Redis, queue: str, age: int) -> Snapshot:
    """FLUSHALL; ``age`` is the new one's number. Returns what there was the instant before."""
    return _snapshot(client, queue, str(age))


def read_record(client: redis.Redis, queue: str, job_id: str) -> tuple[int, Record]:
    """The age, and what is held of one id then."""
    age, held = _eval(client, _ONE, [], [_prefix(queue), AGE, job_id])
    return int(age), _record(held)


def expire(client: redis.Redis, queue: str, record: Record, milliseconds: int) -> None:
    """Let a record end its time soon, unless the id already stands for another life."""
    kinds = ("job", "events", "result")
    keys = [f"{_prefix(queue)}{kind}:{record.job_id}" for kind in kinds]
    _eval(client, _EXPIRE, keys, [record.spec or b"", milliseconds])


def _prefix(queue: str) -> str:
    return f"mlxq:{{{queue}}}:"


def _eval(client: redis.Redis, source: str, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
    return client.eval(source, len(keys), *keys, *arguments)


def _snapshot(client: redis.Redis, queue: str, new_age: str) -> Snapshot:
    reply = _eval(client, _SNAPSHOT, [], [_prefix(queue), AGE, new_age])
    age, records, rows, dead = reply
    named = [_fields(fields) for _, fields in dead]
    return Snapshot(
        age=int(age),
        records=[_record(held) for held in records],
        rows=Counter(_fields(fields)["id"].decode() for _, fields in rows),
        dead=Counter((row["id"].decode(), row["code"].decode()) for row in named),
    )


def _record(held: Any) -> Record:
    job_id, kept, entries, result = held
    events = tuple((entry.decode(), _fields(fields)["e"]) for entry, fields in entries)
    return Record(job_id.decode(), _fields(kept), events, result)


def _fields(flat: Sequence[bytes]) -> dict[str, bytes]:
    return {name.decode(): value for name, value in zip(flat[::2], flat[1::2], strict=True)}
