"""A worker and a producer made of the Lua scripts alone, for tests of the Redis contract."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import msgpack
import redis

from mlxq_schemas import (
    GROUP,
    BaseEvent,
    Cancelled,
    Event,
    Failed,
    Finished,
    Job,
    Keys,
    Queued,
    Result,
    Retrying,
    Started,
    Token,
)
from mlxq_schemas.keys import Priority
from mlxq_schemas.scripts import ScriptName, script
from mlxq_schemas.wire import decode_event, decode_result, encode_event, encode_job

TTL = 60
DEAD_TTL = 600
IDLE_MS = 30 * 24 * 3600 * 1000

How = Literal["new", "again", "over", "left"]


@dataclass
class LuaWorker:
    """Calls each script as the two sides of the queue do."""

    client: redis.Redis
    queue: str
    name: str = "w1"
    keys: Keys = field(init=False)

    def __post_init__(self) -> None:
        self.keys = Keys(self.queue)

    def run(self, name: ScriptName, keys: list[str], *args: Any) -> Any:
        """The answer of one script."""
        return self.client.eval(script(name), len(keys), *keys, *args)

    # The producer's side

    def submit(self, job: Job, *, max_depth: int = 0) -> list[bytes]:
        k = self.keys
        stored = [k.job(job.id), k.events(job.id), k.jobs(job.priority), *k.all_jobs()]
        stored += [k.result(job.id), k.delayed]
        queued = encode_event(Queued(job=job.id))
        args = (job.id, encode_job(job), job.digest(), queued, k.tokens(job.id), max_depth)
        return self.run("submit", stored, *args, job.not_before or 0)

    def cancel(self, job_id: str) -> bytes:
        k = self.keys
        stored = [k.job(job_id), k.events(job_id), k.result(job_id), k.results, k.control]
        event = encode_event(Cancelled(job=job_id))
        result = encode_event(Result(job=job_id, type="cancelled"))
        args = (job_id, GROUP, event, result, k.tokens(job_id), TTL, TTL)
        return self.run("cancel", [*stored, k.delayed, k.stray(job_id), *k.all_jobs()], *args)

    def revive(self, job_id: str, row: bytes) -> bytes:
        k = self.keys
        stored = [k.job(job_id), k.events(job_id), k.result(job_id), k.dead, *k.all_jobs()]
        event = encode_event(Retrying(job=job_id, code="revived", message="", restart=True))
        return self.run("revive", stored, job_id, row, event, k.tokens(job_id))

    def forget(self, job_id: str, row: bytes) -> int:
        k = self.keys
        return self.run("forget", [k.job(job_id), k.events(job_id), k.result(job_id), k.dead], row)

    # The worker's side

    def read(self, count: int = 1, priority: Priority = "normal") -> list[tuple[bytes, str]]:
        """(entry, job id) of new entries in one stream."""
        stream = self.keys.jobs(priority)
        with suppress(redis.ResponseError):  # BUSYGROUP: it is there
            self.client.xgroup_create(stream, GROUP, id="0", mkstream=True)
        found: Any = self.client.xreadgroup(GROUP, self.name, {stream: ">"}, count=count)
        rows = found.values() if isinstance(found, dict) else [rows for _, rows in found]
        flat = [row for part in rows for row in (part[0] if isinstance(found, dict) else part)]
        return [(entry, fields[b"id"].decode()) for entry, fields in flat]

    def claim(
        self, job_id: str, entry: bytes, how: How = "new", priority: Priority = "normal"
    ) -> list[Any]:
        k = self.keys
        stored = [k.job(job_id), k.events(job_id), k.result(job_id), k.stray(job_id), k.dead]
        args = (job_id, self.name, k.jobs(priority), entry, GROUP, how, TTL, DEAD_TTL)
        return self.run("claim", [*stored, *k.all_jobs()], *args)

    def append(self, job_id: str, epoch: int, *events: BaseEvent) -> int:
        k = self.keys
        packed = map(encode_event, events)
        stored = [k.job(job_id), k.events(job_id)]
        return self.run("append", stored, epoch, k.tokens(job_id), *packed)

    def finish(
        self,
        job_id: str,
        epoch: int,
        entry: bytes,
        text: str = "",
        code: str = "",
        event: BaseEvent | None = None,
        priority: Priority = "normal",
    ) -> int:
        """End a job as finished, as failed if there is a ``code``, or by another ``event``."""
        k = self.keys
        stored = [k.job(job_id), k.events(job_id), k.result(job_id), k.results, k.dead]
        stored.append(k.jobs(priority))
        if code:
            event = Failed(job=job_id, code=code, message="why")
        event = event or Finished(job=job_id, reason="stop", text=text)
        result = Result.model_validate({**event.model_dump(), "text": text})
        args = (epoch, job_id, result.type, encode_event(event), encode_event(result))
        times = (k.tokens(job_id), TTL, GROUP, entry)
        return self.run("finish", stored, *args, *times, code, "why" if code else "", DEAD_TTL)

    def retry(
        self,
        job_id: str,
        epoch: int,
        entry: bytes,
        *events: BaseEvent,
        due: float = 0.0,
        priority: Priority = "normal",
    ) -> int:
        k = self.keys
        event = encode_event(Retrying(job=job_id, code="media_fetch_failed", message="why"))
        stored = [k.job(job_id), k.events(job_id), k.jobs(priority), k.delayed]
        args = (epoch, job_id, k.tokens(job_id), event, due, GROUP, entry, 1)
        return self.run("retry", stored, *args, *map(encode_event, events))

    def promote(self, job_id: str) -> int:
        k = self.keys
        return self.run("promote", [k.job(job_id), k.delayed, *k.all_jobs()], job_id)

    def come_due(self, job_id: str) -> None:
        """Let the time of a delayed job come."""
        self.client.zadd(self.keys.delayed, {job_id: 1.0}, xx=True)

    def beat(self, lease: float, *, woke: bool = False) -> int:
        return self.run("beat", [self.keys.beats], lease, int(woke))

    def alive(self, job_id: str, epoch: int) -> int:
        return self.run("alive", [self.keys.job(job_id)], epoch)

    def begin(self, job_id: str, epoch: int) -> int:
        return self.run("begin", [self.keys.job(job_id)], epoch)

    def hand_back(
        self, job_id: str, epoch: int, entry: bytes, priority: Priority = "normal"
    ) -> int:
        k = self.keys
        args = (epoch, GROUP, self.name, entry, IDLE_MS)
        return self.run("hand_back", [k.job(job_id), k.jobs(priority)], *args)

    def renew(self, *entries: bytes) -> list[bytes]:
        return self.run("renew", [self.keys.jobs()], GROUP, self.name, *entries)

    def do(self, text: list[str]) -> str:
        """Take the next job and finish it with ``text``; returns its id."""
        [(entry, job_id)] = self.read()
        epoch = self.claim(job_id, entry)[1]
        tokens = (Token(job=job_id, text=piece) for piece in text)
        self.append(job_id, epoch, Started(job=job_id, worker=self.name), *tokens)
        assert self.finish(job_id, epoch, entry, "".join(text)) == 1
        return job_id

    # What anybody may look at

    def events(self, job_id: str) -> list[Event]:
        """All events kept, each entry's id checked against its number."""
        found: list[Event] = []
        for entry, fields in self.client.xrange(self.keys.events(job_id)):
            event = decode_event(fields[b"e"])
            assert entry == b"%d-0" % (event.seq + 1)
            found.append(event)
        return found

    def result(self, job_id: str) -> Result:
        data = self.client.get(self.keys.result(job_id))
        assert isinstance(data, bytes)
        return decode_result(data)

    def state(self, job_id: str) -> dict[str, Any]:
        """The job hash without its spec."""
        raw = self.client.hgetall(self.keys.job(job_id))
        return {key.decode(): value.decode() for key, value in raw.items() if key != b"spec"}

    def depth(self) -> int:
        return sum(self.client.xlen(stream) for stream in self.keys.all_jobs())


def unpacked(data: bytes) -> dict[str, Any]:
    """A message as a foreign reader sees it."""
    return msgpack.unpackb(data)
