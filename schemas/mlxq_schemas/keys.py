"""Redis key names of one queue.

The queue name stands in hash-tag braces, so that all keys of a queue lie in one
cluster slot and Lua scripts may touch them together.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal, get_args

from mlxq_schemas.errors import InvalidJob

Priority = Literal["high", "normal", "low"]
PRIORITIES: Final[tuple[Priority, ...]] = get_args(Priority)

GROUP: Final = "workers"
"""Name of the consumer group on every jobs stream."""

DEFAULT_QUEUE: Final = "captions"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@-]{0,127}\Z")


def check_name(kind: str, name: str) -> str:
    """Return ``name`` if it may stand in a key; raise :class:`InvalidJob` if not.

    ``kind`` ("job id", "queue") goes into the message.
    """
    if not _NAME.match(name):
        raise InvalidJob(
            f"{kind} {name[:140]!r} is not a name: use 1 to 128 letters, digits or '_.:@-', "
            "beginning with a letter or digit"
        )
    return name


@dataclass(frozen=True)
class Keys:
    """Every key of one queue. ``Keys("captions").job("a")`` is ``mlxq:{captions}:job:a``."""

    queue: str = DEFAULT_QUEUE

    def __post_init__(self) -> None:
        check_name("queue", self.queue)

    @property
    def prefix(self) -> str:
        return f"mlxq:{{{self.queue}}}"

    def jobs(self, priority: Priority = "normal") -> str:
        """Stream of waiting jobs of one priority; entries hold ``id`` only."""
        return f"{self.prefix}:jobs:{priority}"

    def all_jobs(self) -> list[str]:
        """The three jobs streams, the most urgent first."""
        return [self.jobs(priority) for priority in PRIORITIES]

    def job(self, job_id: str) -> str:
        """Hash: spec, state, life, attempt, deaths, errors, epoch, seq, times."""
        return f"{self.prefix}:job:{job_id}"

    def blob(self, sha256: str) -> str:
        """String: inlined media bytes, stored once by content."""
        return f"{self.prefix}:blob:{sha256}"

    def events(self, job_id: str) -> str:
        """Stream: the replayable events of one job; entry ``(seq + 1)-0`` holds event ``seq``."""
        return f"{self.prefix}:events:{job_id}"

    def tokens(self, job_id: str) -> str:
        """Pub/sub channel: the same events, live."""
        return f"{self.prefix}:tokens:{job_id}"

    def result(self, job_id: str) -> str:
        """String: the stored result (msgpack)."""
        return f"{self.prefix}:result:{job_id}"

    @property
    def results(self) -> str:
        """Stream: one row a finished job."""
        return f"{self.prefix}:results"

    @property
    def dead(self) -> str:
        """Stream: dead letters."""
        return f"{self.prefix}:dead"

    @property
    def delayed(self) -> str:
        """Sorted set: due times (unix seconds) of delayed and retrying jobs."""
        return f"{self.prefix}:delayed"

    def batch(self, batch_id: str) -> str:
        """Hash with TTL: the object of an OpenAI batch, and the wish to cancel it."""
        return f"{self.prefix}:batch:{batch_id}"

    def batch_lines(self, batch_id: str) -> str:
        """Stream with TTL: the lines of a detached batch; entry ``N-0`` is line ``N``."""
        return f"{self.prefix}:batch:{batch_id}:lines"

    def stray(self, job_id: str) -> str:
        """String with TTL: an entry of this id, pushed by hand, outlives its cancelled job."""
        return f"{self.prefix}:stray:{job_id}"

    @property
    def beats(self) -> str:
        """Hash with TTL: when the server was seen by those who renew leases."""
        return f"{self.prefix}:beats"

    @property
    def sweeper(self) -> str:
        """String with TTL: the worker that looks for jobs of dead workers just now."""
        return f"{self.prefix}:sweeper"

    @property
    def keeper(self) -> str:
        """String with TTL: the worker that prolongs the media of waiting jobs just now."""
        return f"{self.prefix}:keeper"

    @property
    def control(self) -> str:
        """Pub/sub channel: ``cancel <id> <life>``, ``reclaim``."""
        return f"{self.prefix}:control"

    @property
    def rq(self) -> str:
        """Hash in the Redis that RQ uses: RQ jobs in flight, by mlxq id (JSON)."""
        return f"{self.prefix}:rq"

    def cron(self, name: str) -> str:
        """String with TTL: the last tick (unix seconds) of a schedule that was done."""
        return f"{self.prefix}:cron:{name}"

    def cron_lock(self, name: str) -> str:
        """String with TTL: who does a tick of a schedule just now."""
        return f"{self.prefix}:cron:{name}:lock"

    @property
    def workers(self) -> str:
        """Sorted set: live worker names by the time (unix seconds) their row ends."""
        return f"{self.prefix}:workers"

    def worker(self, name: str) -> str:
        """Hash with TTL: one live worker's model, load and heartbeat."""
        return f"{self.prefix}:workers:{name}"
