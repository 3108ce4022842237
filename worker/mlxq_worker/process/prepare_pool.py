"""Preparing jobs in threads, beside the engine: decode, check, fetch, tokenise, hand over."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

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
from mlxq_worker.process.flight import Flight, Flights, Stage, Stop
from mlxq_worker.process.report import Reporter
from mlxq_worker.queue.blobs import BlobStore
from mlxq_worker.queue.claim import Claim
from mlxq_worker.queue.connection import reason
from mlxq_worker.queue.duty import backoff
from mlxq_worker.queue.resume import Prior, read_prior

log = logging.getLogger(__name__)

MAX_DEATHS = 3
"""Workers that may die with a job before it counts as their cause."""
EARLY = 1.0
"""Seconds by which what a worker knows of the server's clock may be off."""


class PreparePool:
    """Threads that bring flights from PREPARING to RUNNING, or to their end.

    ``names``: what a job's ``model`` may say. ``put`` hands a request to the engine, ``abort``
    ends one that it has.
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
    ) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="mlxq-prepare")
        self._backend = backend
        self._names = names
        self._client = client
        self._keys = keys
        self._flights = flights
        self._reporter = reporter
        self._put = put
        self._abort = abort
        self._closed = threading.Event()
        self._read_blob = BlobStore(client, keys).read

    def submit(self, flight: Flight) -> None:
        """Prepare a claimed flight, when a thread is free."""
        self._pool.submit(self._run, flight)

    def close(self) -> None:
        """Begin no more; what is in progress ends by itself."""
        self._closed.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(self, flight: Flight) -> None:
        failures = 0
        while flight.stage is Stage.PREPARING and not self._closed.is_set():
            try:
                self._prepare(flight)
            except (RedisConnectionError, RedisTimeoutError) as error:
                failures += 1
                log.warning(
                    "cannot prepare yet",
                    extra={"job": flight.owned.job_id, "reason": reason(error)},
                )
                self._closed.wait(backoff(failures))
            else:
                return

    def _prepare(self, flight: Flight) -> None:
        """One try; what is wrong with the job ends it, what is wrong with the server raises."""
        try:
            request = self._request(flight)
        except (RedisConnectionError, RedisTimeoutError):
            raise
        except RedisError as error:
            self._reporter.failed(
                flight, QueueUnavailable(f"the server refused a read: {reason(error)}")
            )
        except JobError as error:
            self._reporter.failed(flight, error)
        except Exception as error:
            log.exception("prepare failed", extra={"job": flight.owned.job_id})
            kind = type(error).__name__
            self._reporter.failed(
                flight, MlxqError(f"{kind} while the job was prepared; the worker's log says more")
            )
        else:
            self._hand_over(flight, request)

    def _request(self, flight: Flight) -> Request:
        """The request of a flight; an empty one if the job is to stop or to wait."""
        began = time.monotonic()
        claim = flight.owned
        prior = self._prior(claim)
        flight.text = [prior.text] if prior.text else []
        if flight.stop is not None:
            return Request(claim.request_id)
        job = flight.job = decode(claim, self._names)
        if self._early(job) or self._limit(flight) is not None:
            return Request(claim.request_id)
        if not flight.started:
            self._reporter.started(flight, prior.restart)
        request = self._backend.prepare(job.check(), self._read_blob)
        flight.media = request.prepared.media if request.prepared else ()
        flight.preparing = time.monotonic() - began
        return replace(request, request_id=claim.request_id, prior_ids=prior.ids)

    def _hand_over(self, flight: Flight, request: Request) -> None:
        if flight.stop is None and (limit := self._limit(flight)) is not None:
            flight.stop = limit
        if flight.stop is not None:
            self._reporter.stopped(flight)
        elif flight.job is not None and (due := self._early(flight.job)):
            self._reporter.too_early(flight, due)
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
    """The job of a claim, for one of the models of these names.

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
    return job
