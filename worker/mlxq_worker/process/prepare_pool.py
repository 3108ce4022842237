"""Preparing jobs in threads, beside the engine: decode, check, fetch, tokenise, hand over.

One thread opens jobs: it reads what the queue holds of them, so that their limits are known
however long they wait then. Others prepare them, and may hang there (a dead mount, a slow name
server): the job's end does not wait for that, nor do other jobs.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from mlxq_schemas import Job, Keys
from mlxq_schemas.errors import (
    BadMessage,
    JobError,
    MlxqError,
    Poison,
    QueueUnavailable,
    UnknownModel,
)
from mlxq_schemas.wire import decode_job
from mlxq_worker.backend import Backend
from mlxq_worker.engine.request import Request
from mlxq_worker.process.crew import Crew
from mlxq_worker.process.flight import Flight, Flights, Stage, Stop
from mlxq_worker.process.report import Reporter
from mlxq_worker.process.seeds import seeded
from mlxq_worker.queue.blobs import BlobStore
from mlxq_worker.queue.claim import Claim
from mlxq_worker.queue.connection import reason
from mlxq_worker.queue.duty import Duty, backoff
from mlxq_worker.queue.resume import Prior, read_prior

log = logging.getLogger(__name__)

MAX_DEATHS = 3
"""Workers that may die with a job before it counts as their cause."""
EARLY = 1.0
"""Seconds by which what a worker knows of the server's clock may be off."""
SPARES: Final = 4
"""Threads that may hang and be replaced, for each that there is."""
LOOK: Final = 0.5
"""Seconds between looks for threads that hang."""


class PreparePool:
    """Threads that bring flights from PREPARING to RUNNING, or to their end.

    ``names``: what a job's ``model`` may say. ``put`` hands a request to the engine, ``abort``
    ends one that it has. ``give_back`` gets flights that nobody here can prepare.
    """

    def __init__(
        self,
        threads: int,
        backend: Backend,
        names: frozenset[str],
        client: redis.Redis,
        keys: Keys,
        *,
        flights: Flights,
        reporter: Reporter,
        put: Callable[[Request], None],
        abort: Callable[[str], None],
        give_back: Callable[[Sequence[Flight]], object],
    ) -> None:
        self._backend = backend
        self._names = names
        self._client = client
        self._keys = keys
        self._flights = flights
        self._reporter = reporter
        self._put = put
        self._abort = abort
        self._closed = threading.Event()
        self._give_back = give_back
        self._read_blob = BlobStore(client, keys).read
        self._opening = Crew[Flight]("open", 1, lambda flight: self._run(flight, self._open))
        self._preparing = Crew[Flight](
            "prepare",
            threads,
            lambda flight: self._run(flight, self._prepare),
            wanted=lambda flight: flight.stage is Stage.PREPARING,
            spares=SPARES * threads,
        )
        self._watch = Duty("hangs", self._look)
        self._watch.start()

    @property
    def stuck(self) -> bool:
        """True while every thread hangs and there may be no more of them."""
        return self._preparing.stuck

    def submit(self, flight: Flight) -> None:
        """Prepare a claimed flight, when a thread is free."""
        self._opening.put(flight)

    def close(self) -> None:
        """Begin no more; what is in progress ends by itself."""
        self._closed.set()
        self._watch.stop()
        self._opening.close()
        self._preparing.close()

    def _look(self) -> float:
        self._preparing.look()
        if self.stuck and (waiting := self._preparing.take_back()):
            log.error("every preparation hangs", extra={"handed_back": len(waiting)})
            self._give_back(waiting)
        return LOOK

    def _run(self, flight: Flight, step: Callable[[Flight], None]) -> None:
        """One step, tried again while the server is away; other errors end the job."""
        failures = 0
        while flight.stage is Stage.PREPARING and not self._closed.is_set():
            try:
                step(flight)
            except (RedisConnectionError, RedisTimeoutError) as error:
                failures += 1
                log.warning(
                    "cannot prepare yet",
                    extra={"job": flight.owned.job_id, "reason": reason(error)},
                )
                self._closed.wait(backoff(failures))
            except Exception as error:  # noqa: BLE001 - what is unexpected is logged there
                self._fail(flight, error)
                return
            else:
                return

    def _fail(self, flight: Flight, error: Exception) -> None:
        if isinstance(error, RedisError):
            error = QueueUnavailable(f"the server refused a read: {reason(error)}")
        elif not isinstance(error, JobError):
            log.error("prepare failed", exc_info=error, extra={"job": flight.owned.job_id})
            kind = type(error).__name__
            error = MlxqError(f"{kind} while the job was prepared; the worker's log says more")
        self._reporter.failed(flight, error)

    def _open(self, flight: Flight) -> None:
        """Read the job; it ends or is put off at once if it is to stop or to wait."""
        began, claim = time.monotonic(), flight.owned
        flight.prior = self._prior(claim)
        flight.text = [flight.prior.text] if flight.prior.text else []
        flight.generated = len(flight.prior.ids)
        if flight.stop is None:
            flight.job = decode(claim, self._names)
            flight.stop = flight.stop or self._limit(flight)
        flight.preparing = time.monotonic() - began
        flight.opened = True
        if flight.stop is not None:
            self._reporter.stopped(flight)
        elif flight.job is not None and (due := self._early(flight.job)):
            self._reporter.too_early(flight, due)
        else:
            self._preparing.put(flight)

    def _prepare(self, flight: Flight) -> None:
        """Make the request and hand it over."""
        began, job, prior = time.monotonic(), flight.job, flight.prior
        if job is None or prior is None:
            raise RuntimeError("a job is opened before it is prepared")
        if flight.stop is not None:
            self._reporter.stopped(flight)
            return
        if not flight.started:
            self._reporter.started(flight, prior.restart)
        request = self._backend.prepare(job.check(), self._read_blob)
        if (prepared := request.prepared) is not None:
            flight.media = prepared.media
            flight.prompt_tokens, flight.images = len(prepared.ids), prepared.images
        flight.preparing += time.monotonic() - began
        request_id = flight.owned.request_id
        self._hand_over(flight, replace(request, request_id=request_id, prior_ids=prior.ids))

    def _hand_over(self, flight: Flight, request: Request) -> None:
        if flight.stop is None and (limit := self._limit(flight)) is not None:
            flight.stop = limit
        if flight.stop is not None:
            self._reporter.stopped(flight)
        elif self._flights.advance(flight, Stage.RUNNING):
            self._put(request)
            if flight.stop is not None:  # between the question above and now
                self._abort(request.request_id)

    def _prior(self, claim: Claim) -> Prior:
        if claim.attempt <= 1 or claim.seq == 0:
            return Prior()
        identity = self._backend.identity
        return read_prior(self._client, self._keys, claim.job_id, identity, claim.seq)

    def _limit(self, flight: Flight) -> Stop | None:
        return flight.limit(self._flights.clock.now())

    def _early(self, job: Job) -> float | None:
        """When the job may begin (unix seconds), if that is not yet."""
        due = job.not_before
        return due if due is not None and due > self._flights.clock.now() + EARLY else None


def decode(claim: Claim, names: frozenset[str]) -> Job:
    """The job of a claim, for one of the models of these names, with a seed if it is sampled.

    Raises :class:`JobError`: what no attempt could do.
    """
    if claim.deaths >= MAX_DEATHS:
        raise Poison(
            f"job {claim.job_id} was in flight when {claim.deaths} workers died: "
            "it is not tried again"
        )
    if claim.spec is None:
        raise BadMessage(
            f"the queue holds no job {claim.job_id}: write its hash before its stream entry"
        )
    job = decode_job(claim.spec, claim.job_id)
    if job.model is not None and job.model not in names:
        raise UnknownModel(
            f"job {job.id} asks for model {job.model[:200]!r}; this worker serves "
            f"{', '.join(sorted(names)[:5])}: name that, or leave model out"
        )
    return seeded(job)
