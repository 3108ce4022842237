"""One run: items in, jobs out, rows written as results come."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from mlxq_producer.client import Producer
from mlxq_producer.errors import OutputFailed, PostFailed
from mlxq_producer.pipeline.item import Item, Outcome, Row
from mlxq_producer.pipeline.judge import Judge, Verdict
from mlxq_producer.pipeline.output import Sink
from mlxq_producer.pipeline.plan import Plan, open_ledger
from mlxq_producer.pipeline.summary import Summary
from mlxq_schemas import Result
from mlxq_schemas.errors import Expired, QueueError, UnknownJob

HELD_ROWS: Final = 256
"""Rows written that the reader has not taken yet; then it is the reader's turn."""

FAILURES_SHOWN: Final = 1000
"""Failed items that are told one by one at the end."""


@dataclass
class Pending:
    """An item under way."""

    item: Item
    prompt: str
    key: str
    stamp: str
    attempt: int = 0
    row: Row | None = None


class Run:
    """Carries a plan out over a producer's queue.

    ``check`` is called several times a second and may raise to end the run. Raises
    :class:`ConfigError`, :class:`OutputInUse`, and what the queue raises; however it ends, what was
    done stays done.
    """

    def __init__(
        self, plan: Plan, producer: Producer, check: Callable[[], None] | None = None
    ) -> None:
        plan.check()
        self.summary = Summary()
        self.still_failed: list[Row] = []
        """Items that failed in an earlier run and are left so, the first of them."""
        self._plan = plan
        self._producer = producer
        self._check = check
        beside, self._sinks = plan.sinks()
        beside.tell = self.summary.add_edited
        self._locks = plan.lock()
        try:
            self._ledger = open_ledger(plan)
        except BaseException:
            self._locks.release()
            raise
        self._judge = Judge(plan, self._ledger, beside)
        items = plan.sources.items(self.summary.passed_over)
        self._items = plan.choice.of(items, self._left_out)
        self._opened: list[Sink] = []
        self._closed = False
        self._exhausted = False
        self._again: deque[dict[str, Any]] = deque()
        self._jobs: dict[str, str] = {}
        self._flying: dict[str, list[Pending]] = {}
        self._retried: set[str] = set()
        self._order: deque[Pending] = deque()
        self._written: deque[Row] = deque()

    def rows(self) -> Iterator[Row]:
        """The rows of this run, each once it is in all outputs."""
        complete = False
        try:
            for sink in self._sinks:
                sink.open(self._ledger, self._plan.existing)
                self._opened.append(sink)
            while not self._exhausted or self._again or self._flying:
                window = self._plan.window
                for result in self._producer.map(
                    self, window=window, ordered=False, check=self._check
                ):
                    self._arrived(result)
                    yield from self._take_written()
                yield from self._take_written()
            complete = True
        finally:
            self.close(complete=complete)

    def close(self, *, complete: bool = False) -> None:
        """Leave outputs and ledger in agreement, and let other runs in."""
        if self._closed:
            return
        self._closed = True
        try:
            self._drop_jobs()
            for sink in self._opened:
                sink.finish(self._ledger)
            if len(self._opened) == len(self._sinks):
                self._ledger.forget_dirty()
            if complete:
                self._ledger.set("complete", "1")
        finally:
            self._ledger.close()
            self._locks.release()

    def _drop_jobs(self) -> None:
        """Nobody waits for what is under way any more: cancel it, unless the plan lets it go on.

        The next run asks again, under other ids. What has ended meanwhile is kept for it.
        """
        self.summary.dropped = self._under_way()
        if self._plan.detach or not self._jobs:
            return
        with suppress(QueueError):
            self._producer.now()  # where the server is away, the jobs keep their ids
            for job_id, key in self._jobs.items():
                self._ledger.try_again(key)
                with suppress(UnknownJob, Expired):
                    if self._producer.cancel(job_id) == "ended":
                        self._keep_outcome(key, Outcome.of(self._producer.result(job_id)))

    def _keep_outcome(self, key: str, outcome: Outcome) -> None:
        if outcome.ok and not self._plan.post.check(outcome.text):
            self._ledger.settle(key, outcome)

    def _left_out(self) -> None:
        self.summary.left_out += 1

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> dict[str, Any]:
        """The next job to send; StopIteration while there is none, or none may be sent yet."""
        while True:
            if self._again:
                return self._again.popleft()
            if self._exhausted or len(self._written) >= HELD_ROWS:
                raise StopIteration
            if self._under_way() >= self._plan.window:
                raise StopIteration
            item = next(self._items, None)
            if item is None:
                self._exhausted = True
                raise StopIteration
            job = self._begin(self._judge.judge(item))
            if job is not None:
                return job

    def _under_way(self) -> int:
        return len(self._order) if self._plan.ordered else sum(map(len, self._flying.values()))

    def _begin(self, found: Verdict) -> dict[str, Any] | None:
        """Act on a verdict; returns the job that it needs, if any."""
        if found.action not in {"reuse", "refuse", "caption"}:
            self._pass_by(found)
            return None
        item = found.item
        visit = self._judge.visit
        self._ledger.begin(item.name, found.stamp, found.seen, found.digest, visit)
        pending = Pending(item, found.prompt, found.key, found.stamp)
        if self._plan.ordered:
            self._order.append(pending)
        outcome = found.outcome
        if outcome is None and found.key in self._flying:
            self._flying[found.key].append(pending)
            self.summary.reused += 1
            return None
        if outcome is None and found.key in self._retried:
            outcome = self._ledger.outcome(found.key)
        if outcome is not None:
            self.summary.reused += found.action == "reuse"
            self._settled(pending, outcome)
            return None
        if self._plan.retry_failed:
            self._ledger.try_again(found.key)
            self._retried.add(found.key)
        self._flying[found.key] = [pending]
        return self._job(pending)

    def _pass_by(self, found: Verdict) -> None:
        """Count an item that needs nothing, and put right what is gone of its output."""
        summary, row = self.summary, None if found.known is None else found.known.row
        match found.action:
            case "done":
                summary.skipped += 1
                if row is not None:
                    self._restore(found.item, row)
            case "failed":
                summary.still_failed += 1
                if row is not None:
                    summary.add_failure(row.source, row.code)
                    if len(self.still_failed) < FAILURES_SHOWN:
                        self.still_failed.append(row)
            case "repeated":
                summary.repeated += 1
            case "left out":
                summary.left_out += 1
            case _:
                summary.kept += 1
                summary.add_edited(*found.edited)

    def _job(self, pending: Pending) -> dict[str, Any]:
        """The job of a pending item, whose id is the same in every run until the work is tried
        again: what a killed run had sent is not done twice.
        """
        tries = self._ledger.tries(pending.key)
        mark = [pending.key, pending.item.name, tries, pending.attempt]
        mark.append(self._plan.folders is None)
        digest = hashlib.sha256(repr(mark).encode()).hexdigest()[:32]
        job_id = f"caption-{self._ledger.run}-{digest}"
        self._jobs[job_id] = pending.key
        return self._plan.job(pending.item, pending.prompt, job_id, pending.attempt)

    def _arrived(self, result: Result) -> None:
        """A job has ended: ask again, or settle all items that waited for it."""
        key = self._jobs.pop(result.job)
        first = self._flying[key][0]
        outcome = Outcome.of(result)
        self.summary.prompt_tokens += outcome.prompt_tokens
        self.summary.completion_tokens += outcome.completion_tokens
        if outcome.ok and (problem := self._plan.post.check(outcome.text)):
            if first.attempt + 1 < self._plan.tries:
                first.attempt += 1
                self._again.append(self._job(first))
                return
            outcome = replace(outcome, text="", code=PostFailed.code, message=problem)
        self._ledger.settle(key, outcome)
        for pending in self._flying.pop(key):
            self._settled(pending, outcome)

    def _settled(self, pending: Pending, outcome: Outcome) -> None:
        pending.row = Row.of(pending.item, self._plan.post.apply(outcome))
        if not self._plan.ordered:
            self._write(pending.item, pending.stamp, pending.row)
            return
        while self._order and (row := self._order[0].row) is not None:
            head = self._order.popleft()
            self._write(head.item, head.stamp, row)

    def _write(self, item: Item, stamp: str, row: Row) -> None:
        row = self._put(item, row)
        sizes: dict[str, int] = {}
        for sink in self._sinks:
            sizes |= sink.sizes()
        self._ledger.write(item.name, stamp, row, sizes)
        self.summary.done += row.ok
        if not row.ok:
            self.summary.failed += 1
            self.summary.add_failure(row.source, row.code)
        self._written.append(row)

    def _put(self, item: Item, row: Row) -> Row:
        """Write the row to all outputs, or if one refuses it a failed one; returns which."""
        for sink in self._sinks:
            try:
                sink.write(item, row)
            except OutputFailed as error:
                return self._put(item, Row.of(item, Outcome.failure(error)))
        return row

    def _restore(self, item: Item, row: Row) -> None:
        try:
            for sink in self._sinks:
                sink.restore(item, row)
        except OutputFailed as error:
            self.summary.skipped -= 1
            known = self._ledger.item(item.name)
            stamp = "" if known is None else known.stamp or ""
            self._write(item, stamp, Row.of(item, Outcome.failure(error)))

    def _take_written(self) -> Iterator[Row]:
        while self._written:
            yield self._written.popleft()
