"""Taking jobs that were read: a new lease epoch, which fences every earlier owner."""

from __future__ import annotations

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
    ``submitted`` is in unix seconds. ``life`` tells the job from others that had or will have its
    id. ``cancelled``: somebody asked for its end. ``errors`` and
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
    life: str = ""

    @property
    def request_id(self) -> str:
        """Names this claim in the engine: a later claim of the same job is another one."""
        return f"{self.job_id}:{self.epoch}"


@dataclass(frozen=True)
class Refused:
    """The server did not carry out the claim: the entry stays ours, unclaimed."""

    error: Exception


@dataclass(frozen=True)
class Retention:
    """Seconds that ended jobs and dead letters are kept."""

    result: int
    dead: int


class Claimer:
    """Claims entries for one worker."""

    def __init__(self, keys: Keys, worker: str, keep: Retention) -> None:
        self._keys = keys
        self._worker = worker
        self._keep = keep

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
                commands.append(self._discard(entry, error))
        replies = link.call(*commands) if commands else []
        claims = {e.key: _outcome(e, reply) for e, reply in zip(good, replies, strict=False)}
        return [claims.get(entry.key) for entry in entries]

    def _command(self, entry: Entry) -> Command:
        keys, job_id = self._keys, entry.job_id or ""
        names = [keys.job(job_id), keys.events(job_id), keys.result(job_id), keys.stray(job_id)]
        return run_script(
            "claim",
            [*names, keys.dead, *keys.all_jobs()],
            [
                *(job_id, self._worker, entry.stream, entry.id, GROUP, entry.how),
                *(self._keep.result, self._keep.dead),
            ],
        )

    def _discard(self, entry: Entry, error: MlxqError) -> Command:
        return run_script(
            "discard",
            [self._keys.dead, entry.stream],
            [
                *((entry.job_id or "")[:200], error.code, error.message),
                *(self._keep.dead, GROUP, entry.id),
            ],
        )


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
        case [word, epoch, attempt, deaths, seq, spec, submitted, cancel, errors, life]:
            return Claim(
                entry,
                job_id,
                int(epoch),
                attempt=int(attempt),
                deaths=int(deaths),
                seq=int(seq),
                spec=spec,
                submitted=float(submitted),
                cancelled=cancel == b"1",
                errors=int(errors),
                alone=word == b"alone",
                life=life.decode(),
            )
        case [b"missing", epoch, submitted]:
            return Claim(entry, job_id, int(epoch), submitted=float(submitted))
        case _:
            return None
