"""Ends RQ jobs when their mlxq jobs have ended.

The stream of results wakes it; what it goes by are the records and the two servers' own state, so
that nothing depends on a row being read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from redis.exceptions import RedisError
from rq import worker_registration
from rq.command import PUBSUB_CHANNEL_TEMPLATE
from rq.exceptions import DeserializationError
from rq.job import Job, JobStatus

from mlxq_producer.rq.ending import Ending
from mlxq_producer.rq.handover import EXECUTION_TTL, Desk, register
from mlxq_producer.rq.records import Record
from mlxq_schemas import Result
from mlxq_schemas.errors import Conflict, JobError, MlxqError, QueueError, UnknownJob
from mlxq_schemas.events import TERMINAL_TYPES
from mlxq_schemas.wire import decode_result

POLL: Final = 0.1
"""Seconds between two looks at the stream of results."""

STUCK: Final = 90.0
"""Seconds after which a job that was taken but not written down goes back to the RQ queue: longer
than an intake waits for a server."""

ALONE: Final = 2.0
"""The same where there is no other intake that may have it in hand."""

_BATCH: Final = 256


@dataclass(frozen=True)
class _State:
    """How a run stands: RQ holds it for started, RQ's status, mlxq's state, its result."""

    started: bool
    status: str
    state: str | None
    data: bytes | None

    @property
    def to_submit(self) -> bool:
        """The handover was broken off."""
        return self.state is None and (self.started or self.status == JobStatus.QUEUED)

    def result(self, run: str) -> Result | None:
        """The result, if the job has ended."""
        if self.data is not None:
            return decode_result(self.data)
        if self.state in TERMINAL_TYPES:
            gone = f"it was {self.state}, and its result is gone (TTL)"
            return Result(job=run, type="expired", code="expired", message=gone)
        return None


class Finisher:
    """The thread that ends the jobs of one intake, and of intakes that are gone."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._worker = desk.worker
        self._ending = Ending(desk)
        self._results = desk.producer.keys.results
        self._halt = threading.Event()
        self._thread = threading.Thread(target=self._run, name="finisher", daemon=True)
        self._renewed: dict[str, float] = {}
        self._stuck: dict[str, float] = {}

    def start(self) -> None:
        """Begin, with a look at what is in flight: RQ must not take it for abandoned."""
        try:
            self._sweep()
        except (RedisError, MlxqError) as error:
            self._worker.log.warning("Intake %s: %s", self._worker.name, error)
        self._thread.start()

    def stop(self) -> None:
        """End after the job at hand."""
        self._halt.set()
        if self._thread.is_alive():
            self._thread.join()

    def mine(self) -> list[Record]:
        """The open runs that this intake sees to."""
        return [r for r in self._desk.records.all() if r.worker == self._worker.name]

    def cancel(self, job_id: str) -> None:
        """Cancel what runs for an RQ job; its end arrives like any other."""
        try:
            for record in self._desk.records.all():
                if record.job == job_id:
                    self._cancel(record)
        except (RedisError, MlxqError):
            self._worker.log.exception("Intake: job %s could not be stopped", job_id)

    def hand_over(self, record: Record, job: Job) -> None:
        """Hand a job over; one that no worker could do fails here. Raises ``QueueError``."""
        try:
            self._desk.hand_over(record, job)
        except (JobError, Conflict, TypeError, DeserializationError) as error:
            self._ending.failed(record, job, error)

    def waits(self, record: Record) -> bool:
        """True while a run is to be submitted."""
        if record.worker != self._worker.name:
            return False
        try:
            [state] = self._states([record])
        except RedisError:
            return True
        return state.to_submit and self._desk.records.has(record.run)

    def _run(self) -> None:
        last: str | None = None
        due = 0.0
        while not self._halt.wait(POLL):
            try:
                last = self._newest() if last is None else self._read(last)
                if time.monotonic() >= due:
                    # A sweep asks both servers about every run: the more, the less often.
                    due = time.monotonic() + 1 + self._sweep() / 1000
            except (RedisError, MlxqError) as error:
                self._worker.log.warning("Intake %s: %s", self._worker.name, error)
                self._halt.wait(1)

    def _newest(self) -> str:
        """The id of a row of a second ago, by the server's clock; the sweep sees what is older."""
        now: Any = self._desk.client.time()
        return f"{(now[0] - 1) * 1000}-0"

    def _read(self, last: str) -> str:
        """Settle what the stream of results has new since ``last``; returns its newest row."""
        rows: Any = self._desk.client.xrange(self._results, min=f"({last}", count=_BATCH)
        if not rows:
            return last
        ended = self._desk.records.of([fields[b"id"].decode() for _, fields in rows])
        self._settle([record for record in ended if record.worker == self._worker.name])
        return rows[-1][0].decode()

    def _sweep(self) -> int:
        """Look at everything that is open; returns how many runs that are."""
        records = [r for r in self._desk.records.all() if r.queue == self._worker.queue.name]
        lost = self._lost({r.worker for r in records} - {self._worker.name})
        mine = [self._adopt(r) if r.worker in lost else r for r in records]
        mine = [r for r in mine if r.worker == self._worker.name]
        for start in range(0, len(mine), _BATCH):
            self._settle(mine[start : start + _BATCH])
        self._renewed = {r.run: self._renewed[r.run] for r in mine if r.run in self._renewed}
        self._return_stuck({r.job for r in records})
        return len(records)

    def _lost(self, names: set[str]) -> set[str]:
        """Those of these intakes that listen no more."""
        channels = {PUBSUB_CHANNEL_TEMPLATE % name: name for name in names}
        if not channels:
            return set()
        counts: Any = self._worker.connection.pubsub_numsub(*channels)
        return {channels[channel.decode()] for channel, count in counts if not count}

    def _adopt(self, record: Record) -> Record:
        """See to a run from now on; RQ's commands for it come here."""
        mine = replace(record, worker=self._worker.name)
        connection = self._worker.connection
        for key in (Job.key_for(record.job), self._desk.execution(record).key):
            if connection.exists(key):
                connection.hset(key, "worker_name", mine.worker)
        self._desk.records.put(mine)
        return mine

    def _settle(self, records: Sequence[Record]) -> None:
        """Bring runs one step on."""
        for record, state in zip(records, self._states(records), strict=True):
            if self._halt.is_set():
                return
            try:
                self._step(record, state)
            except (RedisError, MlxqError):
                raise
            except Exception:
                self._worker.log.exception("Intake: job %s", record.job)

    def _step(self, record: Record, state: _State) -> None:
        result = state.result(record.run)
        if state.started and result is not None:
            self._ending.complete(record, result)
        elif state.to_submit:
            self._resume(record)
        elif state.started:
            self._renew(record)
        else:  # RQ is done with the run: it was ended, cancelled, deleted or given up
            self._cancel(record)
            self._desk.withdraw(record)
            self._desk.records.drop(record.run)

    def _states(self, records: Sequence[Record]) -> list[_State]:
        keys = self._desk.producer.keys
        registry = self._worker.queue.started_job_registry.key
        with self._worker.connection.pipeline(transaction=False) as pipeline:
            for record in records:
                pipeline.hget(Job.key_for(record.job), "status")
                pipeline.zscore(registry, f"{record.job}:{record.execution}")
            here: list[Any] = pipeline.execute()
        with self._desk.client.pipeline(transaction=False) as pipeline:
            for record in records:
                pipeline.hget(keys.job(record.run), "state")
                pipeline.get(keys.result(record.run))
            there: list[Any] = pipeline.execute()
        states: list[_State] = []
        for status, score, state, data in zip(
            here[::2], here[1::2], there[::2], there[1::2], strict=True
        ):
            known = (status or b"").decode()
            started = known == JobStatus.STARTED and score is not None
            states.append(_State(started, known, state and state.decode(), data))
        return states

    def _resume(self, record: Record) -> None:
        """Go on with a handover that was broken off, unless it has been done meanwhile."""
        with self._desk.lock:
            [state] = self._states([record])
            job = self._ending.fetch(record)
            if job is None or not state.to_submit or not self._desk.records.has(record.run):
                return
            try:
                self.hand_over(record, job)
            except QueueError as error:
                self._worker.log.warning("Intake: job %s waits: %s", record.job, error)

    def _renew(self, record: Record) -> None:
        """Tell RQ now and then that the run is alive."""
        now = time.monotonic()
        job = self._ending.fetch(record) if now >= self._renewed.get(record.run, 0.0) else None
        if job is None:
            return
        with self._worker.connection.pipeline() as pipeline:
            register(self._desk.execution(record), job, pipeline)
            pipeline.execute()
        self._renewed[record.run] = now + EXECUTION_TTL / 6

    def _cancel(self, record: Record) -> None:
        with suppress(UnknownJob):
            self._desk.producer.cancel(record.run)

    def _return_stuck(self, known: set[str]) -> None:
        """Put jobs back that an intake took off the queue and died before writing down."""
        now = time.monotonic()
        waiting = self._worker.queue.intermediate_queue.get_job_ids()
        known = known | {self._worker.holding or ""}
        self._stuck = {i: self._stuck.get(i, now) for i in waiting if i not in known}
        if not self._stuck:
            return
        patience = STUCK if self._others() else ALONE
        for job_id in [i for i, since in self._stuck.items() if now - since >= patience]:
            self._worker.log.warning("Intake: job %s was taken and left; back it goes", job_id)
            self._desk.give_back(job_id)

    def _others(self) -> set[str]:
        """Names of the other workers of this RQ queue that live."""
        keys = worker_registration.get_keys(self._worker.queue)
        prefix = self._worker.redis_worker_namespace_prefix
        names = {key.removeprefix(prefix) for key in keys} - {self._worker.name}
        return names - self._lost(names)
