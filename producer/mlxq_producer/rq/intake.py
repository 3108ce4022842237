"""The RQ worker that runs nothing itself."""

from __future__ import annotations

import threading
from types import FrameType
from typing import Any, Final

from rq.command import parse_payload
from rq.exceptions import StopRequested
from rq.job import Job
from rq.queue import Queue
from rq.timeouts import TimerDeathPenalty
from rq.worker import WorkerStatus
from rq.worker.base import BaseWorker

from mlxq_producer.client import Producer
from mlxq_producer.rq.finisher import Finisher
from mlxq_producer.rq.handover import Desk
from mlxq_producer.rq.records import Record, Records
from mlxq_producer.tasks import client_beside, queue_name
from mlxq_schemas.errors import ConfigError, QueueError

_STOP_COMMANDS: Final = ("stop-job", "stop-execution")
_PAUSE: Final = 1.0
"""Seconds between two tries to reach mlxq, and between two looks in burst mode."""


class Intake(BaseWorker):
    """Hands calls of :func:`mlxq_producer.tasks.submit` to mlxq and takes the next at once.

    A thread beside it ends each RQ job when its mlxq job has ended. What is in flight is written
    down in RQ's Redis: an intake that dies loses nothing, another goes on with it. Give each one
    RQ queue, where RQ keeps a job that was taken until it is started; several intakes may share
    a queue.
    """

    # Callbacks run in a thread, where no signal arrives.
    death_penalty_class = TimerDeathPenalty

    def __init__(self, queues: Any, *args: Any, **options: Any) -> None:
        super().__init__(queues, *args, **options)
        self._halt = threading.Event()
        self._burst = False
        self.holding: str | None = None
        """The RQ job at hand."""
        mlxq = client_beside(self.connection)
        producer = Producer(client=mlxq, queue=queue_name())
        self._desk = Desk(self, mlxq, producer, Records(self.connection, producer.keys.rq))
        self._finisher = Finisher(self._desk)

    def work(self, burst: bool = False, *args: Any, **options: Any) -> bool:
        """See ``rq``; in burst mode it stays until what it handed over has ended."""
        if len(self.queues) != 1:
            raise ConfigError(
                f"an Intake takes one RQ queue, and these are {', '.join(self.queue_names())}: "
                "start one for each, since RQ keeps a taken job safe only for a worker of one queue"
            )
        self._burst = burst
        return super().work(burst, *args, **options)

    def bootstrap(self, *args: Any, **options: Any) -> None:
        """Begin to end jobs, before RQ looks for abandoned ones."""
        super().bootstrap(*args, **options)
        self._finisher.start()

    def execute_job(self, job: Job, queue: Queue) -> None:
        """Hand a job over; while mlxq cannot take it, wait, and take no other."""
        del queue
        self.set_state(WorkerStatus.BUSY)
        self.holding = job.id
        record = self._take(job)
        if record is None:
            self._halt.wait(_PAUSE)
        else:
            # Where that failed the finisher tries again, and alone: it knows what became of it.
            while self._finisher.waits(record) and not self._halt.wait(_PAUSE):
                self.heartbeat()
        self.holding = None
        self.set_state(WorkerStatus.IDLE)

    def _take(self, job: Job) -> Record | None:
        """Write a job down and hand it over; None if it went back to its queue instead."""
        with self._desk.lock:
            try:
                record = self._desk.take(job)
            except QueueError as error:
                self.log.warning("Intake %s: job %s goes back: %s", self.name, job.id, error)
                self._desk.give_back(job.id)
                return None
            if record.worker == self.name:
                try:
                    self._finisher.hand_over(record, job)
                except QueueError as error:
                    self.log.warning("Intake %s: job %s waits: %s", self.name, job.id, error)
            return record

    @property
    def queue(self) -> Queue:
        """Its RQ queue."""
        return self.queues[0]

    def mark_stopped(self, job: Job) -> None:
        """Have RQ take the coming failure of a job for a stop on request."""
        self._stopped_job_id = job.id

    def handle_payload(self, message: Any) -> None:
        """Stop commands go on to mlxq; RQ does the others."""
        payload = parse_payload(message)
        if payload["command"] in _STOP_COMMANDS:
            self._finisher.cancel(payload["job_id"])
        else:
            super().handle_payload(message)

    def request_stop(self, signum: int, frame: FrameType | None) -> None:
        """Stop after this job; what is in flight is for the next intake."""
        self._halt.set()
        super().request_stop(signum, frame)

    def teardown(self) -> None:
        """Leave in order; in burst mode when all has ended."""
        try:
            while self._burst and self._finisher.mine() and not self._halt.wait(_PAUSE / 5):
                self.heartbeat()
        except StopRequested:
            pass
        self._finisher.stop()
        super().teardown()
