"""Sending jobs: each is accepted once by its id, many of them in one round trip."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Final

from mlxq_producer.blobs import Blobs
from mlxq_producer.errors import SubmitErrors
from mlxq_producer.steps import Command, Steps, Work, call, refusal, run_script
from mlxq_producer.submission import JobLike, Submission, prepare
from mlxq_schemas import Keys, Queued
from mlxq_schemas.errors import Conflict, MlxqError, QueueFull, QueueUnavailable
from mlxq_schemas.wire import encode_event

WINDOW_BYTES: Final = 64 * 1024 * 1024
"""A window of jobs is sent once it holds this much, however few they are."""


@dataclass(frozen=True)
class Submitter:
    """Operations that send jobs to one queue.

    ``max_depth`` is the number of jobs at which the queue refuses more (0: no limit);
    ``blob_ttl`` is how many seconds inlined media are kept at least after their last use.
    """

    keys: Keys
    inline_media: bool = True
    max_depth: int = 0
    blob_ttl: int = 86400

    @property
    def blobs(self) -> Blobs:
        """Where the bytes of media go."""
        return Blobs(self.keys, self.blob_ttl)

    def one(self, job: JobLike) -> Steps[str]:
        """Send a job; returns its id, or raises why it was refused."""
        outcomes = yield from self.window([job])
        if isinstance(outcomes[0], MlxqError):
            raise outcomes[0]
        return outcomes[0]

    def many(self, jobs: Iterable[JobLike], window: int) -> Steps[list[str]]:
        """Send jobs window by window; raises :class:`SubmitErrors` at the end."""
        ids: list[str | None] = []
        errors: dict[int, MlxqError] = {}
        for batch in _batches(jobs, window):
            outcomes = yield from self.window(batch)
            for outcome in outcomes:
                if isinstance(outcome, MlxqError):
                    errors[len(ids)] = outcome
                ids.append(outcome if isinstance(outcome, str) else None)
            if outcomes and isinstance(outcomes[-1], QueueUnavailable):
                break  # the rest would wait in vain, each window for its own retries
        if errors:
            raise SubmitErrors(ids, errors)
        return [job_id for job_id in ids if job_id is not None]

    def window(self, jobs: Sequence[JobLike]) -> Steps[list[str | MlxqError]]:
        """Send jobs; returns for each its id, or why it was refused."""
        outcomes: list[str | MlxqError] = []
        while len(outcomes) < len(jobs):
            rest = jobs[len(outcomes) :]
            prepared: list[Submission | MlxqError] = yield Work(partial(self._prepare, rest))
            outcomes += yield from self._send(prepared)
        return outcomes

    def _prepare(self, jobs: Iterable[JobLike]) -> list[Submission | MlxqError]:
        """As many jobs as one window may hold, at least one."""
        prepared: list[Submission | MlxqError] = []
        size = 0
        for job in jobs:
            try:
                submission = prepare(job, inline_media=self.inline_media)
            except MlxqError as error:
                prepared.append(error)
                continue
            prepared.append(submission)
            size += len(submission.spec) + sum(map(len, submission.blobs.values()))
            if size >= WINDOW_BYTES:
                break
        return prepared

    def _send(self, prepared: Sequence[Submission | MlxqError]) -> Steps[list[str | MlxqError]]:
        outcomes: list[str | MlxqError] = [
            item if isinstance(item, MlxqError) else item.job.id for item in prepared
        ]
        good = {i: item for i, item in enumerate(prepared) if isinstance(item, Submission)}
        try:
            lost = yield from self.blobs.store(good.values())
            for i, item in list(good.items()):
                if refused := next((lost[sha] for sha in item.blobs if sha in lost), None):
                    outcomes[i] = refused
                    del good[i]
            if good:
                replies = yield from call(*(self._command(item) for item in good.values()))
                for (i, item), reply in zip(good.items(), replies, strict=True):
                    outcomes[i] = self._outcome(item, reply)
        except QueueUnavailable as error:
            for i in good:
                outcomes[i] = error
        return outcomes

    def _command(self, item: Submission) -> Command:
        keys, job = self.keys, item.job
        names = [keys.job(job.id), keys.events(job.id), keys.jobs(job.priority)]
        names += [*keys.all_jobs(), keys.result(job.id), keys.delayed]
        queued = encode_event(Queued(job=job.id))
        args = [job.id, item.spec, item.digest, queued, keys.tokens(job.id)]
        return run_script("submit", names, [*args, self.max_depth, job.not_before or 0])

    def _outcome(self, item: Submission, reply: Any) -> str | MlxqError:
        job_id = item.job.id
        if isinstance(reply, Exception):
            return refusal(reply)
        match reply:
            case [b"ok"] | [b"duplicate", _]:
                return job_id
            case [b"full", depth]:
                return QueueFull(
                    f"queue {self.keys.queue} holds {depth} jobs of at most {self.max_depth}, "
                    f"so job {job_id} was not taken: wait until workers have caught up"
                )
            case _:
                return Conflict(
                    f"job id {job_id} already stands for another job in queue "
                    f"{self.keys.queue}: use a fresh id"
                )


def _batches(jobs: Iterable[JobLike], size: int) -> Iterator[list[JobLike]]:
    iterator = iter(jobs)
    while batch := list(islice(iterator, max(size, 1))):
        yield batch
