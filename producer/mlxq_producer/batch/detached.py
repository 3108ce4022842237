"""Batches that nobody waits for: sent whole, looked at and fetched from anywhere.

The batch object and, for each line, its ``custom_id`` or what was wrong with it, are kept on the
server; the rest follows from the jobs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

import redis

from mlxq_producer.batch.body import Plan
from mlxq_producer.batch.lines import BadLine, chunks, read_lines
from mlxq_producer.batch.outputs import encode_row
from mlxq_producer.batch.queue_side import (
    add_lines,
    ask_to_cancel,
    lines_after,
    load_batch,
    results,
    save_batch,
    states,
)
from mlxq_producer.batch.record import Batch, check_terms, check_unchanged, new_batch
from mlxq_producer.batch.rows import (
    CANCELLED,
    EXPIRED,
    Sent,
    bad,
    error_row,
    failure,
    logprobs_of,
    response_row,
)
from mlxq_producer.batch.sending import patiently, send
from mlxq_producer.client import Producer
from mlxq_producer.steps import Steps, server_time
from mlxq_producer.sync_runner import Runner
from mlxq_schemas import Priority
from mlxq_schemas.errors import ConfigError, UnknownJob, WaitTimeout

T = TypeVar("T")

_OPEN: Final = ("queued", "delayed", "running")

POLL_SECONDS: Final = 2.0
GRACE_SECONDS: Final = 30.0
"""After the completion window, for workers to end what has expired."""


@dataclass(frozen=True)
class DetachedBatches:
    """The detached batches of a queue. Raises ``UnknownJob`` for ids that it does not know."""

    client: redis.Redis
    queue: str

    def submit(
        self,
        source: Path,
        completion_window: float,
        *,
        model: str | None = None,
        priority: Priority = "normal",
        media_root: Path | None = None,
        batch_id: str | None = None,
        report: Callable[[Batch], None] = lambda _: None,
    ) -> Batch:
        """Send every line of a file; ``report`` hears of the batch before its first line is sent.

        ``batch_id`` goes on with a batch whose submission broke off.
        """
        if batch_id is None:
            now = self._ask(server_time)
            batch = new_batch(source, completion_window, model, priority, now)
        else:
            batch = self._unfinished(batch_id)
            check_terms(batch, source, model, priority)
        batch.request_counts.total = 0
        cancelled = self._ask(lambda: save_batch(self._producer.keys, batch))
        report(batch)
        root = media_root or source.absolute().parent
        plan = Plan(batch.id, batch.expires_at, root, model, priority)
        for chunk in chunks(read_lines(source)):
            if cancelled:
                break
            outcomes = send(self._producer, plan, chunk)
            self._ask(lambda outcomes=outcomes: add_lines(self._producer.keys, batch, outcomes))
            batch.request_counts.total += len(outcomes)
            cancelled = self._ask(lambda: save_batch(self._producer.keys, batch))
        check_unchanged(batch, source)
        batch.move("in_progress")
        self._ask(lambda: save_batch(self._producer.keys, batch))
        return self.cancel(batch.id) if cancelled else self.status(batch.id)

    def status(self, batch_id: str) -> Batch:
        """The batch object, its lines counted by the states of their jobs. Of a batch that has
        ended, lines that are still ``open`` are lost: the server holds nothing of them any more.

        That of a ``batch run`` is as the run last told it.
        """
        batch, wish = self._ask(lambda: load_batch(self._producer.keys, batch_id))
        if batch.ended or batch.output_file_id is not None:
            return batch
        late = batch.clock.now() - batch.expires_at > GRACE_SECONDS
        too_late = 0
        counts = batch.request_counts
        told = counts.total
        counts.total = counts.completed = counts.failed = 0
        for page in self._pages(batch_id):
            counts.total += len(page)
            sent = [one for one in page if isinstance(one, Sent)]
            ids = [one.job(batch_id) for one in sent]
            found = self._ask(lambda ids=ids: states(self._producer.keys, ids))
            left = [i for i, s in zip(ids, found, strict=True) if s in _OPEN]
            finished = found.count("finished")
            counts.completed += finished
            counts.failed += len(page) - finished - len(left)
            too_late += found.count("expired") + found.count("cancelled")
            if late:  # there is no worker that would end them
                self._cancel_jobs(left)
        cancelled = "cancel" in wish
        is_open = bool(counts.open)
        # Lines that the server has lost stay in the total: nobody can say what became of them.
        counts.total = max(counts.total, told)
        if not is_open and (cancelled or batch.status != "validating"):
            batch.move("cancelled" if cancelled else "expired" if too_late else "completed")
            self._ask(lambda: save_batch(self._producer.keys, batch))
        return batch

    def cancel(self, batch_id: str) -> Batch:
        """Cancel what has not ended; a ``batch run`` is told to do so itself."""
        batch = self.status(batch_id)
        if batch.ended:
            return batch
        self._ask(lambda: ask_to_cancel(self._producer.keys, batch))
        if batch.output_file_id is None and batch.status != "validating":
            batch.move("cancelling")
            self._ask(lambda: save_batch(self._producer.keys, batch))
        for page in self._pages(batch_id):
            self._cancel_jobs(one.job(batch_id) for one in page if isinstance(one, Sent))
        return self.status(batch_id)

    def fetch(self, batch_id: str, output: Path, errors: Path, wait: float = 0) -> Batch:
        """Write the rows of a batch that has ended, waited for up to ``wait`` seconds.

        Raises ``WaitTimeout`` if it has not; :class:`ConfigError` if a file is there already.
        """
        for path in (output, errors):
            if path.exists():
                raise ConfigError(f"{path} is there already: move it, or give another name")
        batch = self._ended(batch_id, time.monotonic() + wait)
        if batch.output_file_id is not None:
            raise ConfigError(f"batch {batch_id} was a run; its rows are in {batch.output_file_id}")
        parts = [path.with_name(f"{path.name}.part") for path in (output, errors)]
        with ExitStack() as stack:
            files = [stack.enter_context(part.open("wb")) for part in parts]
            counts = batch.request_counts
            counts.completed = counts.failed = 0
            for page in self._pages(batch_id):
                done = self._write(batch, page, *files)
                counts.completed += done
                counts.failed += len(page) - done
        for part, path in zip(parts, (output, errors), strict=True):
            part.replace(path)
        return batch

    def _write(
        self, batch: Batch, page: list[Sent | BadLine], output: BinaryIO, errors: BinaryIO
    ) -> int:
        """Write the rows of some lines; returns how many have responses."""
        ids = [one.job(batch.id) for one in page if isinstance(one, Sent)]
        found = self._ask(lambda: results(self._producer.keys, ids))
        done = 0
        for one in page:
            if isinstance(one, BadLine):
                errors.write(encode_row(error_row(batch.id, one)))
                continue
            result = found.get(one.job(batch.id))
            if result is None or not result.ok:
                reason = failure(result)
                if batch.status == "expired" and reason == CANCELLED:
                    reason = EXPIRED
                errors.write(encode_row(error_row(batch.id, bad(one, reason))))
                continue
            events = self._producer.follow(result.job) if one.logprobs else ()
            row = response_row(batch.id, one, result, logprobs_of(events))
            output.write(encode_row(row))
            done += 1
        return done

    def _ended(self, batch_id: str, deadline: float) -> Batch:
        while not (batch := self.status(batch_id)).ended:
            if time.monotonic() >= deadline:
                raise WaitTimeout(
                    f"batch {batch_id} has not ended, {batch.request_counts.open:,} lines are "
                    "open: fetch it later, or give a time to --wait"
                )
            time.sleep(POLL_SECONDS)
        return batch

    def _unfinished(self, batch_id: str) -> Batch:
        batch, _ = self._ask(lambda: load_batch(self._producer.keys, batch_id))
        if batch.status != "validating" or batch.output_file_id is not None:
            raise ConfigError(f"batch {batch_id} has all its lines: it is {batch.status}")
        return batch

    def _pages(self, batch_id: str) -> Iterator[list[Sent | BadLine]]:
        last = 0
        while page := self._ask(lambda last=last: lines_after(self._producer.keys, batch_id, last)):
            yield page
            last = page[-1].number

    def _cancel_jobs(self, ids: Iterable[str]) -> None:
        for job_id in ids:
            try:
                patiently(lambda job_id=job_id: self._producer.cancel(job_id))
            except UnknownJob:
                continue  # nothing is left of it

    def _ask(self, make: Callable[[], Steps[T]]) -> T:
        return patiently(lambda: Runner(self.client).run(make()))

    @cached_property
    def _producer(self) -> Producer:
        return Producer(client=self.client, queue=self.queue)
