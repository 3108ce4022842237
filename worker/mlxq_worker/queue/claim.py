"""Taking jobs that were read: a new lease epoch, which fences every earlier owner."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mlxq_schemas import GROUP, Keys
from mlxq_schemas.errors import BadMessage, InvalidJob, MlxqError
from mlxq_schemas.keys import check_name
from mlxq_worker.queue.entry import Entry
from mlxq_worker.queue.link import Command, Link, run_script


@dataclass(frozen=True)
class Claim:
    """A job that is ours until its lease is lost.

    ``spec`` is None if the queue holds none. ``seq`` is the number of the next event.
    ``submitted`` is in unix seconds. ``cancelled``: somebody asked for its end. ``errors`` and
    ``deaths``: transient errors that it met, and workers that died with it. ``alone``: it may
    begin only when nothing else is in flight.
    """

    entry: Entry
    job_id: str
    epoch: int
    attempt: int = 1
    deaths: int = 0
    seq: int = 0
    spec: bytes | None = None
    submitted: float = 0.0
    cancelled: bool = False
    errors: int = 0
    alone: bool = False

    @property
    def request_id(self) -> str:
        """Names this claim in the engine: a later claim of the same job is another one."""
        return f"{self.job_id}:{self.epoch}"


@dataclass(frozen=True)
class Refused:
    """The server did not carry out the claim: the entry stays ours, unclaimed."""

    error: Exception


class Claimer:
    """Claims entries for one worker."""

    def __init__(self, keys: Keys, worker: str, dead_ttl: float) -> None:
        self._keys = keys
        self._worker = worker
        self._dead_ttl = dead_ttl

    def claim(self, link: Link, entries: Sequence[Entry]) -> list[Claim | Refused | None]:
        """Claim entries in one round trip; None for one that has nothing left to do.

        Raises one of ``LINK_ERRORS``; then none counts as claimed.
        """
        wrong = {entry.key: error for entry in entries if (error := _judge(entry))}
        good = [entry for entry in entries if not entry.deleted and entry.key not in wrong]
        commands = [self._command(entry) for entry in good]
        for entry in entries:
            if entry.deleted:
                commands.append(("XACK", entry.stream, GROUP, entry.id))
            elif error := wrong.get(entry.key):
                commands += self._discard(entry, error)
        replies = link.call(*commands) if commands else []
        claims = {e.key: _outcome(e, reply) for e, reply in zip(good, replies, strict=False)}
        return [claims.get(entry.key) for entry in entries]

    def _command(self, entry: Entry) -> Command:
        job_id = entry.job_id or ""
        return run_script(
            "claim",
            [self._keys.job(job_id), self._keys.events(job_id), entry.stream],
            [job_id, self._worker, entry.id, GROUP, time.time(), "1" if entry.taken_over else "0"],
        )

    def _discard(self, entry: Entry, error: MlxqError) -> list[Command]:
        """Bury an entry that names no job: there is nobody to send an event to."""
        now = time.time()
        oldest = int((now - self._dead_ttl) * 1000)
        fields = ("id", (entry.job_id or "")[:200], "code", error.code, "message", error.message)
        return [
            ("MULTI",),
            ("XADD", self._keys.dead, "MINID", "~", oldest, "*", *fields, "attempts", 1, "t", now),
            ("XACK", entry.stream, GROUP, entry.id),
            ("XDEL", entry.stream, entry.id),
            ("EXEC",),
        ]


def _judge(entry: Entry) -> MlxqError | None:
    if entry.deleted:
        return None
    if entry.job_id is None:
        return BadMessage(f"entry {entry.id} of {entry.stream} has no field 'id'")
    try:
        check_name("job id", entry.job_id)
    except InvalidJob as error:
        return error
    return None


def _outcome(entry: Entry, reply: Any) -> Claim | Refused | None:
    if isinstance(reply, Exception):
        return Refused(reply)
    job_id = entry.job_id or ""
    values: list[Any] = list(reply)
    match values:
        case [word, epoch, attempt, deaths, seq, spec, submitted, cancel, errors]:
            return Claim(
                entry,
                job_id,
                int(epoch),
                attempt=int(attempt),
                deaths=int(deaths),
                seq=int(seq),
                spec=spec,
                submitted=_seconds(submitted),
                cancelled=cancel == b"1",
                errors=int(errors),
                alone=word == b"alone",
            )
        case [b"missing", epoch]:
            return Claim(entry, job_id, int(epoch), submitted=time.time())
        case _:
            return None


def _seconds(value: bytes) -> float:
    try:
        return float(value)  # a hash written by hand may hold anything
    except ValueError:
        return time.time()
