"""Ends an RQ job as its mlxq job ended, by what RQ's own workers do."""

from __future__ import annotations

import sys
import traceback
from dataclasses import dataclass
from typing import Any

from rq.callbacks import (
    execute_failure_callback,
    execute_stopped_callback,
    execute_success_callback,
)
from rq.exceptions import NoSuchJobError
from rq.job import Job, JobStatus

from mlxq_producer.rq.handover import Desk
from mlxq_producer.rq.records import Record
from mlxq_schemas import Result
from mlxq_schemas.errors import MlxqError


class JobNotFinished(MlxqError):
    """The mlxq job of an RQ job failed or expired; ``reason`` is the ``code`` of its result."""

    code = "job_not_finished"

    def __init__(self, result: Result) -> None:
        self.reason = result.code or result.type
        message = result.message or f"its mlxq job was {result.type}"
        super().__init__(f"{result.job} [{self.reason}]: {message}")


@dataclass(frozen=True)
class Ending:
    """The ends that RQ knows: finished, failed or to be retried, stopped."""

    desk: Desk

    def complete(self, record: Record, result: Result) -> None:
        """End the RQ job of a run whose mlxq job has this result."""
        job = self.fetch(record)
        if job is None:
            self.desk.records.drop(record.run)
        elif result.ok:
            self._succeeded(record, job, result)
        elif result.type == "cancelled":
            self._stopped(record, job)
        else:
            self.failed(record, job, JobNotFinished(result))

    def fetch(self, record: Record) -> Job | None:
        """The RQ job, unless it was deleted."""
        worker = self.desk.worker
        try:
            return worker.job_class.fetch(record.job, worker.connection, worker.serializer)
        except NoSuchJobError:
            return None

    def failed(self, record: Record, job: Job, error: Exception) -> None:
        """Fail the RQ job, or have it retried if it has retries left."""
        worker = self.desk.worker
        worker.handle_execution_ended(job, worker.queue, job.failure_callback_timeout)
        info: Any = (type(error), error, error.__traceback__)
        try:
            execute_failure_callback(job, worker.death_penalty_class, *info)
        except Exception:  # noqa: BLE001 - a user's function; RQ records its error instead
            info = sys.exc_info()
        worker.handle_exception(job, *info)
        self._fail(record, job, "".join(traceback.format_exception(*info)))

    def _succeeded(self, record: Record, job: Job, result: Result) -> None:
        worker = self.desk.worker
        value = result.model_dump(mode="json", exclude_none=True)
        worker.handle_execution_ended(job, worker.queue, job.success_callback_timeout)
        job._result = value  # pyright: ignore[reportPrivateUsage] - RQ offers no other way
        try:
            execute_success_callback(job, worker.death_penalty_class, value)
        except Exception as error:  # noqa: BLE001 - a user's function; RQ fails the job then
            self.failed(record, job, error)
            return
        execution = self.desk.execution(record)
        worker.handle_job_success(job, worker.queue, worker.queue.started_job_registry, execution)
        job.send_webhooks(JobStatus.FINISHED)
        self.desk.records.drop(record.run)

    def _stopped(self, record: Record, job: Job) -> None:
        worker = self.desk.worker
        worker.handle_execution_ended(job, worker.queue, job.stopped_callback_timeout)
        try:
            execute_stopped_callback(job, worker.death_penalty_class)
        except Exception:
            worker.log.exception("Intake: the stopped callback of job %s raised", job.id)
        worker.mark_stopped(job)
        self._fail(record, job, "Job stopped: its mlxq job was cancelled.")

    def _fail(self, record: Record, job: Job, reason: str) -> None:
        worker = self.desk.worker
        registry = worker.queue.started_job_registry
        execution = self.desk.execution(record)
        worker.handle_job_failure(job, worker.queue, registry, reason, execution)
        # RQ logs an error of its server here and goes on; then the next sweep tries again.
        if worker.connection.zscore(registry.key, execution.composite_key) is None:
            self.desk.records.drop(record.run)
