"""What both clients are made of: settings in, operations out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from mlxq_producer.dead import DeadLetter, choice, dead_letters, drop_dead, retry_dead
from mlxq_producer.following import Follower
from mlxq_producer.operations import CancelOutcome, Operations
from mlxq_producer.pipeline.window import Window
from mlxq_producer.place import Place, job_place
from mlxq_producer.queue_status import QueueStatus, queue_status
from mlxq_producer.steps import Steps, server_time
from mlxq_producer.submission import JobLike
from mlxq_producer.submitting import Submitter
from mlxq_schemas import Job, Keys, Result
from mlxq_schemas.errors import ConfigError
from mlxq_schemas.keys import check_name

Ids = str | Iterable[str] | None
"""Job ids: one, several, or None for any."""

BLOB_TTL = 86400
"""Seconds for which inlined media are kept after their last use."""


class BaseProducer:
    """Builds the operations that :class:`Producer` and :class:`AsyncProducer` run."""

    def __init__(
        self,
        queue: str,
        inline_media: bool,
        max_depth: int,
        result_ttl: float,
        media_ttl: float = BLOB_TTL,
    ) -> None:
        if result_ttl < 1:
            raise ConfigError(f"result_ttl is {result_ttl} s; give at least one second")
        if media_ttl < 1:
            raise ConfigError(f"media_ttl is {media_ttl} s; give at least one second")
        if max_depth < 0:
            raise ConfigError(f"max_depth is {max_depth}; give a number of jobs, or 0 for no limit")
        self.keys = Keys(queue)
        self._submitter = Submitter(self.keys, inline_media, max_depth, int(media_ttl))
        self._operations = Operations(self.keys, int(result_ttl))

    @property
    def queue(self) -> str:
        """Name of the queue."""
        return self.keys.queue

    def _submit(self, job: JobLike | None, fields: Mapping[str, object]) -> Steps[str]:
        if job is not None and fields:
            raise TypeError("give a job or its fields, not both")
        return self._submitter.one(fields if job is None else job)

    def _submit_many(self, jobs: Iterable[JobLike], window: int) -> Steps[list[str]]:
        if isinstance(jobs, Job | Mapping | str):
            raise TypeError("submit_many takes an iterable of jobs; use submit for one")
        return self._submitter.many(jobs, window)

    def _map(
        self,
        jobs: Iterable[JobLike],
        window: int,
        ordered: bool,
        check: Callable[[], None] | None,
    ) -> Steps[None]:
        if isinstance(jobs, Job | Mapping | str):
            raise TypeError("map takes an iterable of jobs; use submit for one")
        return Window(self._submitter, jobs, size=window, ordered=ordered, check=check).results()

    def _follow(
        self, starts: Mapping[str, int], timeout: float | None, wait_for_job: bool
    ) -> Steps[None]:
        for job_id in starts:
            check_name("job id", job_id)
        return Follower(self.keys, starts, timeout=timeout, wait_for_job=wait_for_job).events()

    def _result(self, job_id: str, wait: float | None) -> Steps[Result]:
        return self._operations.result(job_id, wait)

    def _cancel(self, job_id: str) -> Steps[CancelOutcome]:
        return self._operations.cancel(job_id)

    def _dead(
        self, ids: Ids, code: str | None, older_than: float | None
    ) -> Steps[list[DeadLetter]]:
        return dead_letters(self.keys, choice(ids, code, older_than))

    def _retry_dead(self, ids: Ids, code: str | None, older_than: float | None) -> Steps[list[str]]:
        return retry_dead(self.keys, choice(ids, code, older_than))

    def _drop_dead(
        self, ids: Ids, code: str | None, older_than: float | None
    ) -> Steps[list[DeadLetter]]:
        return drop_dead(self.keys, choice(ids, code, older_than))

    def _now(self) -> Steps[float]:
        return server_time()

    def _status(self) -> Steps[QueueStatus]:
        return queue_status(self.keys)

    def _place(self, job_id: str) -> Steps[Place]:
        return job_place(self.keys, job_id)
