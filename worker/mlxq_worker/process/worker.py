"""The worker process: start order, running, and an end that loses nothing."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Final

from mlxq_schemas.errors import MlxqError
from mlxq_worker.backend import Backend
from mlxq_worker.config import WorkerConfig
from mlxq_worker.engine.request import Response
from mlxq_worker.noop import PREFIX, build_noop
from mlxq_worker.process.engine_thread import EngineThread
from mlxq_worker.process.flight import Flight, Stage
from mlxq_worker.process.prepare_pool import PreparePool
from mlxq_worker.process.queue_side import QueueSide
from mlxq_worker.process.rates import Rate
from mlxq_worker.process.signals import StopSignals
from mlxq_worker.queue.connection import check_server, reason
from mlxq_worker.queue.duty import THREAD_PREFIX
from mlxq_worker.queue.health import Fields
from mlxq_worker.queue.link import LINK_ERRORS
from mlxq_worker.queue.rights import check_rights

log = logging.getLogger(__name__)

TICK: Final = 0.1
"""Seconds between looks at signals: a handler must not touch locks, so it cannot wake us."""
LAST_WORK: Final = 2.0
"""Seconds of the grace time kept for publishing and handing back."""
THREADS_END: Final = 0.5
"""Seconds for our threads to end after all is done."""
READ_TIME: Final = 7.0
"""Seconds after which a blocked read has ended, also on a dead connection."""


class Worker:
    """One worker process. The model is loaded first: who cannot load must not take jobs."""

    def __init__(self, config: WorkerConfig, signals: StopSignals) -> None:
        self._config = config
        self._began = time.monotonic()
        self._started = 0.0  # unix seconds, by the server's clock
        self._signals = signals
        self._empty = threading.Event()
        self._jobs, self._tokens = Rate(), Rate()
        self._pool: PreparePool | None = None
        self._engine = EngineThread(partial(build, config), self._report)
        self._queue = QueueSide(
            config,
            abort=self._engine.abort,
            prepare=self._prepare,
            fields=self._health,
            hindrance=self._hindrance,
            on_empty=self._empty.set,
        )

    def run(self) -> None:
        """Work until a signal, an empty queue (``burst``) or ``max_jobs``.

        Raises :class:`MlxqError` if the server or the model is not fit, and whatever ended the
        engine.
        """
        self._queue.clock.learn(check_server(self._queue.client))
        check_rights(self._queue.client, self._queue.keys)
        self._started = self._queue.clock.now()
        backend = self._load()
        if backend is None:
            return
        self._begin(backend)
        try:
            while not self._over():
                time.sleep(TICK)
        finally:
            self._end()
        if self._engine.error is not None:
            raise self._engine.error

    def _load(self) -> Backend | None:
        """The backend; None if a signal came before it was there."""
        self._engine.start()
        while self._engine.backend is None and not self._engine.ended:
            if self._signals.count:
                return None
            time.sleep(TICK / 10)
        if self._engine.error is not None:
            raise self._engine.error
        return self._engine.backend

    def _begin(self, backend: Backend) -> None:
        names = backend.names | ({self._config.model_name} if self._config.model_name else set())
        self._queue.reporter.identity = backend.identity
        self._pool = PreparePool(
            self._config.prepare_threads,
            backend,
            frozenset(names),
            self._queue.client,
            self._queue.keys,
            flights=self._queue.flights,
            reporter=self._queue.reporter,
            put=self._engine.put,
            abort=self._engine.abort,
            give_back=self._queue.hand_back,
        )
        self._queue.start()
        log.info(
            "ready",
            extra={
                "worker": self._config.name,
                "model": backend.identity,
                "queue": self._config.queue,
                "rows": backend.max_rows,
                "seconds": time.monotonic() - self._began,
            },
        )

    def _over(self) -> bool:
        if self._signals.count or self._engine.ended:
            return True
        limit = self._config.max_jobs
        if limit is not None and self._queue.reporter.counters.ended >= limit:
            return True
        idle = self._empty.is_set() and len(self._queue.flights) == 0
        self._empty.clear()
        return self._config.burst and idle

    def _end(self) -> None:
        """Read no more, finish what runs within the grace time, hand the rest back."""
        deadline = time.monotonic() + self._config.grace
        flights = self._queue.flights
        log.info("stopping", extra={"in_flight": len(flights), "grace": self._config.grace})
        self._queue.stop_taking(READ_TIME)
        if self._pool is not None:
            self._pool.close()
        returned = self._hand_back(flights.unfinished(Stage.RUNNING))
        last = deadline - min(LAST_WORK, self._config.grace / 4)
        while flights.busy() and time.monotonic() < last and not self._hurried():
            time.sleep(TICK / 2)
        self._engine.stop()
        self._engine.join(max(LAST_WORK / 2, deadline - time.monotonic()))
        self._queue.publisher.drain(max(LAST_WORK / 2, deadline - time.monotonic()))
        returned += self._hand_back(flights.unfinished())
        try:
            self._queue.close()
        except LINK_ERRORS as error:
            log.warning("health row not removed", extra={"reason": reason(error)})
        counters = self._queue.reporter.counters
        log.info(
            "stopped",
            extra={"done": counters.done, "failed": counters.failed, "handed_back": returned},
        )

    def _hurried(self) -> bool:
        return self._signals.count > 1 or self._engine.ended

    def _hand_back(self, flights: list[Flight]) -> int:
        try:
            return self._queue.hand_back(flights)
        except (*LINK_ERRORS, MlxqError) as error:
            # Their leases run out by themselves; then another worker takes them.
            log.warning("cannot hand back", extra={"jobs": len(flights), "reason": reason(error)})
            return 0

    def _prepare(self, flight: Flight) -> None:
        if self._pool is not None:
            self._pool.submit(flight)

    def _report(self, responses: Sequence[Response]) -> None:
        self._queue.reporter.responses(responses)

    def _health(self) -> Fields:
        backend, counters = self._engine.backend, self._queue.reporter.counters
        busy = self._queue.flights.unfinished()
        running = sum(flight.stage is Stage.RUNNING for flight in busy)
        max_rows = backend.max_rows if backend else self._config.max_rows
        now = time.monotonic()
        return {
            "model": self._config.model_name or self._config.model or "bundled",
            "identity": backend.identity if backend else "",
            "state": self._state(),
            "problem": self._queue.problem,
            "rows": min(running, max_rows),
            "max_rows": max_rows,
            "waiting": len(busy) - min(running, max_rows),
            "done": counters.done,
            "failed": counters.failed,
            "tokens": counters.tokens,
            "prompt_tokens": counters.prompt_tokens,
            "cached_tokens": counters.cached_tokens,
            "jobs_per_s": round(self._jobs.update(counters.ended, now), 3),
            "tokens_per_s": round(self._tokens.update(counters.tokens, now), 3),
            "started": self._started,
            "pid": os.getpid(),
            "host": socket.gethostname(),
        }

    def _hindrance(self) -> str:
        return "preparation_hangs" if self._pool is not None and self._pool.stuck else ""

    def _state(self) -> str:
        if self._signals.count:
            return "stopping"
        return "blocked" if self._queue.problem else "ready"


def build(config: WorkerConfig) -> Backend:
    """The backend of a configuration, loaded in the calling thread."""
    if (config.model or "").startswith(PREFIX):
        return build_noop(config)
    # MLX is imported in the thread that will own it, and not at all for a noop.
    from mlxq_worker.build import build_backend  # noqa: PLC0415

    return build_backend(config)


def any_thread_left() -> bool:
    """True if a thread hangs in the model or a download: only the process's end ends it."""
    end = time.monotonic() + THREADS_END
    while any(thread.name.startswith(THREAD_PREFIX) for thread in threading.enumerate()):
        if time.monotonic() > end:
            return True
        time.sleep(TICK / 10)
    return False
