"""A server and a worker of one's own, for as long as a run takes."""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from mlxq_producer.client import Producer
from mlxq_producer.embedded import EmbeddedServer
from mlxq_producer.errors import WorkerFailed
from mlxq_producer.processes import ChildProcess
from mlxq_producer.worker_command import worker_command, worker_end, worker_environment
from mlxq_schemas.errors import EXIT_DEVICE_FAILED

log = logging.getLogger(__name__)

QUEUE: Final = "captions"
POLL_SECONDS: Final = 0.1
RESULT_TTL: Final = 3600
"""Seconds that results stay in the server's memory: each is read at once."""
RESTARTS: Final = 5
"""Deaths of the worker that a run survives: a job that kills it is set aside after three."""


class EmbeddedQueue:
    """Starts a server and, in another process, a worker; ends both.

    ``model`` is a folder or hub id, None the model in the package. Files under ``folders`` go to
    the worker by path. Raises :class:`ConfigError` where server or worker is not installed, and
    :class:`WorkerFailed` with the worker's last words if it does not come up.
    """

    def __init__(self, model: str | None, folders: Sequence[Path]) -> None:
        self._command = worker_command(
            *("--result-ttl", str(RESULT_TTL)),
            *(("--model", model) if model is not None else ()),
            *(word for folder in folders for word in ("--media-root", str(folder))),
        )
        self._stack = ExitStack()
        self._worker: ChildProcess | None = None
        self._deaths = 0
        self._producer: Producer | None = None

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            place = stack.enter_context(tempfile.TemporaryDirectory(prefix="mlxq-captions-"))
            server = stack.enter_context(EmbeddedServer())
            self._environment = worker_environment(server.url, QUEUE)
            self._log = Path(place) / "worker.log"
            stack.callback(self._stop_worker)
            self._start_worker()
            producer = stack.enter_context(Producer(server.url, QUEUE, inline_media=False))
            while not producer.status().workers:
                self._must_live()
                time.sleep(POLL_SECONDS)
            self._producer = producer
            self._stack = stack.pop_all()
        return self

    @property
    def producer(self) -> Producer:
        """A producer on the queue, while it is open."""
        assert self._producer is not None, "enter the context first"  # noqa: S101
        return self._producer

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def check(self) -> None:
        """Start the worker again if it died. Raises :class:`WorkerFailed` if it keeps dying."""
        if self._worker is not None and (status := self._worker.poll()) is not None:
            self._deaths += 1
            if self._deaths > RESTARTS:
                self._must_live()
            if status == EXIT_DEVICE_FAILED:
                log.warning("%s; another one is started", worker_end(status))
            self._start_worker()

    def _start_worker(self) -> None:
        self._worker = ChildProcess(self._command, self._log, self._environment)

    def _stop_worker(self) -> None:
        if self._worker is not None:
            self._worker.stop()

    def _must_live(self) -> None:
        if self._worker is not None and (status := self._worker.poll()) is not None:
            raise WorkerFailed(
                f"{worker_end(status)}; the end of its log:\n{self._worker.log_tail()}"
            )
