"""``mlxq batch run``: a batch file goes through the queue, a window of lines at a time.

Memory is that of the window: the file is read as jobs end, rows are written as results come, in
any order. A line's job id follows from the batch and its ``custom_id``, and a row's id from its
line, so that a run that was killed goes on: lines with a row are passed over, the others are
sent again, and the queue takes each job once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal, TypeVar

import redis

from mlxq_producer.batch.alike import Alike
from mlxq_producer.batch.body import Plan, brings_files, job_fields
from mlxq_producer.batch.lines import CHUNK, BadLine, Line, Request, read_lines, take
from mlxq_producer.batch.outputs import Outputs
from mlxq_producer.batch.queue_side import (
    ended_since,
    forget_wish,
    let_go,
    results,
    results_from_now,
    save_batch,
)
from mlxq_producer.batch.record import Batch, check_terms, check_unchanged, new_batch, retry
from mlxq_producer.batch.rows import (
    CANCELLED,
    EXPIRED,
    Row,
    Sent,
    bad,
    failure,
    logprobs_of,
    response_row,
)
from mlxq_producer.batch.sending import job_of, patiently, send
from mlxq_producer.client import Producer
from mlxq_producer.errors import BatchFailing
from mlxq_producer.resending import lacks_media, resend
from mlxq_producer.steps import Steps, server_time
from mlxq_producer.submitting import Submitter
from mlxq_producer.sync_runner import Runner
from mlxq_schemas import Priority, Result
from mlxq_schemas.errors import ConfigError, QueueError, UnknownJob

T = TypeVar("T")
Report = Callable[[Batch], None]
Each = Callable[[Row], object]

DAY: Final = 86400.0
WINDOW: Final = 1000
BEAT_SECONDS: Final = 1.0
"""Between two looks at the clock, at a wish to cancel, and reports."""
FIRST_SWEEP_SECONDS: Final = 0.5
LAST_SWEEP_SECONDS: Final = 10.0
"""Silence after which every job in flight is looked at; doubles up to this. What a run before this
one sent may have ended long ago, and a server that failed over may have lost a row."""
GRACE_SECONDS: Final = 30.0
"""For jobs in flight to end once they are cancelled."""
_REASONS: Final = {"cancelled": CANCELLED, "expired": EXPIRED}


@dataclass(frozen=True)
class BatchRun:
    """One batch file and where its rows go; :meth:`run` may be called again after any end.

    ``window`` is the most jobs in flight. ``completion_window`` is in seconds from the first
    run. For ``model``, ``priority`` and ``media_root`` see
    :class:`~mlxq_producer.batch.body.Plan`; the folder of ``source`` is the default root.
    ``retry_failed`` does lines with error rows again, on these terms. Unless ``keep_going``, a run
    whose first lines all fail alike ends. ``detach`` lets the jobs under way go on when the run is
    interrupted; else they are cancelled.
    """

    client: redis.Redis
    queue: str
    source: Path
    output: Path
    errors: Path
    window: int = WINDOW
    completion_window: float = DAY
    model: str | None = None
    priority: Priority = "normal"
    media_root: Path | None = None
    retry_failed: bool = False
    keep_going: bool = False
    detach: bool = False

    def run(self, report: Report = lambda _: None, each: Each = lambda _: None) -> Batch:
        """Do every line that has no row yet; ``report`` hears each second how far it is, ``each``
        of every row.

        Raises :class:`ConfigError`; :class:`BatchFailing` where the first lines all fail alike;
        :class:`QueueUnavailable` or :class:`RedisFull` once the server is away or full for a
        minute. Whatever ends it, the same call goes on.
        """
        if self.window < 1:
            raise ConfigError(f"window is {self.window} jobs; give at least 1")
        now = patiently(lambda: Runner(self.client).run(server_time()))
        fresh = new_batch(self.source, self.completion_window, self.model, self.priority, now)
        with Outputs(self.source, self.output, self.errors, fresh) as outputs:
            batch = outputs.batch
            batch.clock.learn(now)
            if self.retry_failed and batch is not fresh:
                retry(batch, self.source, self.model, self.priority)
                outputs.forget_failures()
            else:
                check_terms(batch, self.source, self.model, self.priority)
            # Rows of a batch that had ended may be lost: files are torn, or were cut by hand.
            if not batch.ended or outputs.missing:
                _Loop(self, outputs, report, each).run()
            report(batch)
            return batch


@dataclass
class _Loop:
    """A run under way: what is in flight, and where it reads."""

    job: BatchRun
    outputs: Outputs
    report: Report
    each: Each
    pending: dict[str, Sent] = field(default_factory=dict[str, Sent])
    with_files: dict[str, Request] = field(default_factory=dict[str, Request])
    """Lines in flight that can be sent again, once, if their files go from the server."""
    cursor: str = ""
    next_beat: float = 0.0
    next_sweep: float = 0.0
    silence: float = FIRST_SWEEP_SECONDS
    exhausted: bool = False
    reopened: bool = False
    """Whether the batch had ended, so that lines without a row may have results."""
    end: Literal["cancelled", "expired"] | None = None
    """Why no more lines will be done."""

    def run(self) -> None:
        job, batch = self.job, self.outputs.batch
        self.batch, self.counts = batch, batch.request_counts
        self.counts.total = 0
        self.producer = Producer(client=job.client, queue=job.queue)
        self.alike = Alike(over=job.keep_going or self.counts.completed > 0)
        self.outputs.tell = self._written
        root = job.media_root or job.source.absolute().parent
        terms = job.model, job.priority, batch.round
        self.plan = Plan(batch.id, batch.expires_at, root, *terms)
        self.cursor = self.ask(results_from_now)
        self.lines = self._lines()
        try:
            self._begin()
            self._work()
        except (KeyboardInterrupt, SystemExit, BatchFailing):
            self._let_go()
            raise
        check_unchanged(batch, job.source)
        batch.move(self.end or "completed")
        self.ask(lambda: save_batch(self.producer.keys, batch))

    def _work(self) -> None:
        while not (self.exhausted and not self.pending):
            self._beat()
            if self.end:
                self._give_up(_REASONS[self.end])
            else:
                self._fill()
                self._gather()
                self.alike.check()

    def _written(self, row: Row) -> None:
        self.alike.see(row)
        self.each(row)

    def _let_go(self) -> None:
        """Keep what has ended; cancel what is under way, whose lines get other jobs next time."""
        if self.job.detach:
            return
        with suppress(QueueError):
            self._collect(list(self.pending))
            self.batch.next_round()
            self.outputs.save()
            for job_id in self.pending:
                with suppress(UnknownJob):
                    self.producer.cancel(job_id)

    def _begin(self) -> None:
        if self.job.retry_failed:
            self.ask(lambda: forget_wish(self.producer.keys, self.batch))
        batch = self.batch
        self.reopened = batch.ended
        match batch.status:
            case "completed":
                batch.reopen()
                self.plan = replace(self.plan, deadline=batch.expires_at)
            case "cancelled" | "expired" as end:
                self.end = end
            case "validating":
                batch.move("in_progress")
            case _:
                pass

    def ask(self, make: Callable[[], Steps[T]]) -> T:
        return patiently(lambda: Runner(self.job.client).run(make()))

    def _lines(self) -> Iterator[Line]:
        """Lines that have no row yet; counts all."""
        for line in read_lines(self.job.source):
            self.counts.total += 1
            if not self.outputs.is_done(line.number):
                yield line

    def _beat(self) -> None:
        now = time.monotonic()
        if now < self.next_beat:
            return
        self.next_beat = now + BEAT_SECONDS
        if self.ask(lambda: save_batch(self.producer.keys, self.batch)):
            self.batch.move("cancelling")
            self.end = "cancelled"
        elif self.end is None and self.batch.clock.now() >= self.batch.expires_at:
            self.end = "expired"
        self.report(self.batch)

    def _fill(self) -> None:
        """Send the next lines, once there is room for a good number of them."""
        room = self.job.window - len(self.pending)
        if self.exhausted or (self.pending and room < max(min(CHUNK, self.job.window // 4), 1)):
            return
        lines = self._take(min(room, CHUNK))
        for line, one in zip(lines, send(self.producer, self.plan, lines), strict=True):
            if isinstance(one, BadLine):
                self.outputs.refuse(one)
                continue
            job_id = one.job(self.batch.id)
            self.pending[job_id] = one
            if isinstance(line, Request) and brings_files(line.body):
                self.with_files[job_id] = line
        self.outputs.flush()

    def _take(self, count: int) -> list[Line]:
        """The next lines; of a batch that had ended, those whose results are gone."""
        lines = take(self.lines, count)
        self.exhausted = not lines
        if not self.reopened:
            return lines
        made = [job_of(line, self.plan) for line in lines]
        sent = {one[0].job(self.batch.id): one[0] for one in made if not isinstance(one, BadLine)}
        found = self.ask(lambda: results(self.producer.keys, list(sent)))
        known = {sent[i].number: (sent[i], result) for i, result in found.items() if result}
        for one, result in known.values():
            self._write(one, result)
        return [line for line in lines if line.number not in known]

    def _gather(self) -> None:
        """Write the rows of jobs that have ended; waits a moment if there are none."""
        if not self.pending:
            return
        self.cursor, ids = self.ask(lambda: ended_since(self.producer.keys, self.cursor))
        wanted = [job_id for job_id in ids if job_id in self.pending]
        if wanted:
            self._collect(wanted)
            self._sweep_after(FIRST_SWEEP_SECONDS)
        elif time.monotonic() >= self.next_sweep:
            # Also while rows of others come: one of ours may have been trimmed unread.
            found = self._collect(list(self.pending))
            self._sweep_after(FIRST_SWEEP_SECONDS if found else 2 * self.silence)
        elif not ids:
            time.sleep(0.02)

    def _sweep_after(self, seconds: float) -> None:
        self.silence = min(seconds, LAST_SWEEP_SECONDS)
        self.next_sweep = time.monotonic() + self.silence

    def _collect(self, ids: list[str]) -> int:
        """Write the rows of those among these jobs that have ended; returns how many."""
        found = self.ask(lambda: results(self.producer.keys, ids))
        for job_id in self._send_again(found):
            del found[job_id]
        for job_id, result in found.items():
            self.with_files.pop(job_id, None)
            self._write(self.pending.pop(job_id), result)
        self.outputs.flush()
        finished = [i for i, result in found.items() if result is not None and result.ok]
        self.ask(lambda: let_go(self.producer.keys, finished))
        return len(found)

    def _send_again(self, found: Mapping[str, Result | None]) -> list[str]:
        """Send jobs once more whose files had gone from the server; what ends them is to come."""
        gone = [i for i, result in found.items() if i in self.with_files and lacks_media(result)]
        if not gone or self.end:
            return []
        jobs = {i: job_fields(self.with_files[i], self.plan) for i in gone}
        self.ask(lambda: resend(Submitter(self.producer.keys), jobs))
        for job_id in gone:
            del self.with_files[job_id]
        return gone

    def _write(self, sent: Sent, result: Result | None) -> None:
        if result is None or not result.ok:
            reason = failure(result)
            if self.end and reason == CANCELLED:  # by ourselves
                reason = _REASONS[self.end]
            self.outputs.refuse(bad(sent, reason))
            return
        events = self.producer.follow(result.job) if sent.logprobs else ()
        self.outputs.respond(response_row(self.batch.id, sent, result, logprobs_of(events)))

    def _give_up(self, end: tuple[str, str]) -> None:
        """Cancel what is in flight, take what has ended, and give all other lines an error row."""
        for job_id in list(self.pending):
            try:
                patiently(lambda job_id=job_id: self.producer.cancel(job_id))
            except UnknownJob:
                self.outputs.refuse(bad(self.pending.pop(job_id), end))
        limit = time.monotonic() + GRACE_SECONDS
        while self.pending and time.monotonic() < limit:
            self._collect(list(self.pending))
            time.sleep(0.05)
        for sent in self.pending.values():
            self.outputs.refuse(bad(sent, end))
        self.pending.clear()
        while not self.exhausted:
            for line in self._take(CHUNK):
                is_bad = isinstance(line, BadLine)
                self.outputs.refuse(line if is_bad else BadLine(line.number, line.custom_id, *end))
