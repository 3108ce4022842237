"""A bounded number of jobs in flight, over as many jobs as there are.

One round trip asks for all results at once, so that a window costs the server the same whether it
holds ten jobs or five hundred, and needs no connection of its own for each.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, cast

from mlxq_producer.resending import lacks_media, resend
from mlxq_producer.steps import Sleep, Steps, Work, checked
from mlxq_producer.submission import JobLike
from mlxq_producer.submitting import Submitter
from mlxq_schemas import Event, Job, Result, new_id
from mlxq_schemas.errors import Conflict, MlxqError, QueueFull, QueueUnavailable, RedisFull
from mlxq_schemas.wire import decode_result

FIRST_PAUSE: Final = 0.01
LONGEST_PAUSE: Final = 0.25
"""Seconds between two looks at the results, while none comes."""
FULL_PAUSE: Final = 0.5
"""Seconds before a job is sent again that a full queue or server refused."""
VANISHED_SECONDS: Final = 5.0
"""How often jobs are looked for that the server has lost (flushed, restarted empty)."""
RECONNECT_SECONDS: Final = 30.0
"""How long a server that went away is waited for."""
BATCH: Final = 64
"""Most jobs sent in one round trip."""


@dataclass
class _Slot:
    job: JobLike
    result: Result | None = None
    resent: bool = False


class Window:
    """Sends jobs, ``size`` of them in flight at most, and yields their results.

    ``jobs`` is asked for more after each result, also when it had none before: a feed may go on.
    Results come as they are ready, or with ``ordered`` in the order of the jobs. A job that is
    refused gets a failed result. One whose media had gone from the server is sent again, once.
    ``check`` is called at each turn; what it raises ends the run.
    """

    def __init__(
        self,
        submitter: Submitter,
        jobs: Iterable[JobLike],
        *,
        size: int,
        ordered: bool,
        check: Callable[[], None] | None = None,
    ) -> None:
        self._submitter = submitter
        self._keys = submitter.keys
        self._jobs: Iterator[JobLike] = iter(jobs)
        self._size = max(size, 1)
        self._ordered = ordered
        self._check = check
        self._unsent: deque[str] = deque()
        self._open: dict[str, _Slot] = {}
        self._send_at = 0.0
        self._vanished_at = time.monotonic() + VANISHED_SECONDS

    def results(self) -> Steps[None]:
        """Yields one result a job. Raises :class:`Conflict` for an id that is in the window twice,
        and :class:`QueueUnavailable` once a server stays away.
        """
        pause, lost_at, ever = FIRST_PAUSE, None, False
        while True:
            if self._check is not None:
                yield Work(self._check)
            try:
                yield from self._fill()
                if not self._open:
                    return
                news = yield from self._collect()
            except QueueUnavailable:
                now = time.monotonic()
                lost_at = lost_at or now
                if not ever or now - lost_at > RECONNECT_SECONDS:
                    raise
                yield Sleep(FULL_PAUSE)
                continue
            ever, lost_at = True, None
            # A result is told from a step as events are; it is none of those that a job publishes.
            yield from cast("Iterator[Event]", self._ready())
            if news:
                pause = FIRST_PAUSE
            else:
                yield Sleep(pause)
                pause = min(pause * 1.5, LONGEST_PAUSE)

    def _fill(self) -> Steps[None]:
        """Send what there is room for."""
        while True:
            if not self._unsent:
                yield Work(partial(self._pull, min(self._size - len(self._open), BATCH)))
            if not self._unsent or time.monotonic() < self._send_at:
                return
            ids = [self._unsent.popleft() for _ in range(min(len(self._unsent), BATCH))]
            self._unsent.extendleft(reversed(ids))  # not lost if the send fails
            outcomes = yield from self._submitter.window([self._open[i].job for i in ids])
            refused: list[str] = []
            for job_id, outcome in zip(ids, outcomes, strict=True):
                self._unsent.popleft()
                if isinstance(outcome, QueueFull | RedisFull | QueueUnavailable):
                    refused.append(job_id)
                elif isinstance(outcome, MlxqError):
                    self._open[job_id].result = refusal_of(job_id, outcome)
            self._unsent.extendleft(reversed(refused))
            if refused:
                self._send_at = time.monotonic() + FULL_PAUSE
                lost = [o for o in outcomes if isinstance(o, QueueUnavailable)]
                if lost:
                    raise lost[0]
                return

    def _pull(self, count: int) -> None:
        for _ in range(count):
            job = next(self._jobs, None)
            if job is None:
                return
            job_id, job = _with_id(job)
            if job_id in self._open:
                raise Conflict(f"job id {job_id} is in the window twice: give each job its own id")
            self._open[job_id] = _Slot(job)
            self._unsent.append(job_id)

    def _collect(self) -> Steps[bool]:
        """Fetch the results that are there; True if any is new."""
        unsent = set(self._unsent)
        waiting = [i for i, s in self._open.items() if s.result is None and i not in unsent]
        if not waiting:
            return False
        [replies] = yield from checked(("MGET", *map(self._keys.result, waiting)))
        found = {i: data for i, data in zip(waiting, replies, strict=True) if data is not None}
        results = {job_id: decode_result(data) for job_id, data in found.items()}
        gone = yield from self._send_again([i for i, r in results.items() if lacks_media(r)])
        for job_id, result in results.items():
            if job_id not in gone:
                self._open[job_id].result = result
        if not found and time.monotonic() > self._vanished_at:
            yield from self._look_for_vanished(waiting)
        return bool(found)

    def _send_again(self, ids: Iterable[str]) -> Steps[set[str]]:
        """Send jobs once more with their media; the ids whose results are to be asked for anew."""
        slots = {i: self._open[i] for i in ids if not self._open[i].resent}
        if slots:
            yield from resend(self._submitter, {i: slot.job for i, slot in slots.items()})
        for slot in slots.values():
            slot.resent = True
        return set(slots)

    def _look_for_vanished(self, waiting: list[str]) -> Steps[None]:
        """Send again the jobs that the server does not know any more."""
        self._vanished_at = time.monotonic() + VANISHED_SECONDS
        there = yield from checked(*(("EXISTS", self._keys.job(i)) for i in waiting))
        self._unsent.extend(i for i, known in zip(waiting, there, strict=True) if not known)

    def _ready(self) -> Iterator[Result]:
        """Take out what may be given away now."""
        for job_id, slot in list(self._open.items()):
            if slot.result is not None:
                del self._open[job_id]
                yield slot.result
            elif self._ordered:
                return


def refusal_of(job_id: str, error: MlxqError) -> Result:
    """The result of a job that was not taken."""
    return Result(job=job_id, type="failed", code=error.code, message=error.message)


def _with_id(job: JobLike) -> tuple[str, JobLike]:
    if isinstance(job, Job):
        return job.id, job
    if not isinstance(job, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        return new_id(), job  # the submitter says what is wrong with it
    fields: dict[str, Any] = {"id": new_id(), **{k: v for k, v in job.items() if v is not None}}
    return str(fields["id"]), fields
