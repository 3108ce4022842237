"""From RQ to mlxq: write down, register with RQ, submit. Each step may be done twice."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import redis
from redis.client import Pipeline
from rq.executions import Execution, ExecutionRegistry
from rq.job import Job

from mlxq_producer.client import Producer
from mlxq_producer.connection import address, unavailable
from mlxq_producer.rq.records import Record, Records, run_id
from mlxq_producer.tasks import job_fields, submit
from mlxq_schemas.errors import InvalidJob, Unsupported
from mlxq_schemas.events import TERMINAL_TYPES

if TYPE_CHECKING:
    from mlxq_producer.rq.intake import Intake

EXECUTION_TTL: Final = 3600
"""Seconds after which RQ gives a job up that no intake has renewed."""

SUBMIT: Final = f"{submit.__module__}.{submit.__qualname__}"


@dataclass(frozen=True)
class Desk:
    """Hands RQ jobs over to mlxq, for one intake."""

    worker: Intake
    client: redis.Redis
    producer: Producer
    records: Records
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held over a handover: the intake's two threads must not do the same one at once."""

    def take(self, job: Job) -> Record:
        """Write a job down that was taken off the RQ queue; the same record if it was already.

        Raises ``QueueUnavailable`` if mlxq does not answer.
        """
        try:
            run = self._run(job.id)
        except (redis.ConnectionError, redis.TimeoutError) as error:
            raise unavailable(error, address(self.client)) from error
        found = self.records.of([run])
        if found:
            return found[0]
        record = Record(run, job.id, uuid4().hex, self.worker.name, job.origin)
        self.records.put(record)
        return record

    def give_back(self, job_id: str) -> None:
        """Put a job that was taken and not written down to the front of its queue again."""
        queue = self.worker.queue
        with self.worker.connection.pipeline() as pipeline:
            queue.push_job_id(job_id, pipeline, at_front=True)
            pipeline.lrem(queue.intermediate_queue_key, 1, job_id)
            pipeline.execute()

    def _run(self, job_id: str) -> str:
        """The first run of a job that has not ended, or that there is not yet."""
        number = 1
        while True:
            run = run_id(job_id, number)
            key = self.producer.keys.job(run)
            state: Any = self.client.hget(key, "state")
            ended = state is not None and state.decode() in TERMINAL_TYPES
            if not ended and (self.records.has(run) or not self.client.exists(key)):
                return run
            number += 1

    def hand_over(self, record: Record, job: Job) -> None:
        """Register the execution with RQ, and submit the job.

        Raises ``JobError`` and ``TypeError`` for a call that no worker could do, ``QueueError``
        if mlxq cannot take it now.
        """
        with self.worker.connection.pipeline() as pipeline:
            register(self.execution(record), job, pipeline)
            pipeline.execute()
        self.worker.prepare_job_execution(job, remove_from_intermediate_queue=True)
        self.producer.submit(**self._fields(record, job))

    def _fields(self, record: Record, job: Job) -> dict[str, Any]:
        if job.func_name != SUBMIT:
            raise Unsupported(
                f"an Intake runs {SUBMIT} only, and this is {job.func_name}: "
                "enqueue it to the queue of an ordinary rq worker"
            )
        fields = job_fields(*job.args, **job.kwargs)
        if "id" in fields:
            raise InvalidJob(
                f"job id {fields['id']!r}: leave id out, the RQ job's is taken; "
                "to choose it, enqueue with job_id"
            )
        if isinstance(job.timeout, int) and job.timeout > 0:
            fields.setdefault("timeout", job.timeout)
        return {**fields, "id": record.run}

    def execution(self, record: Record) -> Execution:
        """The execution of a run, as stored, or new if RQ has forgotten it."""
        connection = self.worker.connection
        try:
            return Execution.fetch(record.execution, record.job, connection)
        except ValueError:
            return Execution(record.execution, record.job, connection, record.worker)

    def withdraw(self, record: Record) -> None:
        """Undo :func:`register` for a run that RQ ended by itself: no worker shows it any more."""
        execution = self.execution(record)
        with self.worker.connection.pipeline() as pipeline:
            pipeline.delete(execution.key)
            ExecutionRegistry(record.job, execution.connection).remove(execution, pipeline)
            self.worker.queue.started_job_registry.remove_execution(execution, pipeline=pipeline)
            pipeline.srem(execution.worker_executions_key, execution.composite_key)
            pipeline.execute()


def register(execution: Execution, job: Job, pipeline: Pipeline) -> None:
    """Write an execution, or prolong its life."""
    execution.save(EXECUTION_TTL, pipeline)
    ExecutionRegistry(job.id, execution.connection).add(execution, EXECUTION_TTL, pipeline)
    job.started_job_registry.add_execution(execution, pipeline, EXECUTION_TTL)
    if execution.worker_name:
        pipeline.sadd(execution.worker_executions_key, execution.composite_key)
        pipeline.expire(execution.worker_executions_key, EXECUTION_TTL)
