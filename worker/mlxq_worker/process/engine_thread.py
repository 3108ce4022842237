"""The one thread that owns MLX: it loads the model, and every MLX call happens in it."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from mlxq_schemas.errors import DeviceFailed, EngineFailed, GenerationFailed, MlxqError
from mlxq_worker.backend import Backend, Generator
from mlxq_worker.engine.request import Request, Response
from mlxq_worker.models.device import MAX_FAULTS as MAX_DEVICE_FAULTS
from mlxq_worker.models.device import device_fault

log = logging.getLogger(__name__)

MAX_FAULTS: Final = 3
"""Steps that fail in a row, although each time all rows were ended: the process is sick."""


@dataclass(frozen=True)
class Abort:
    """Asks for the end of a request; it travels behind the request itself, and before the next
    of its name: so it means the lives put until then."""

    request_id: str


class EngineThread:
    """Loads the backend, then inserts, steps and reports until stopped.

    ``report`` gets the responses of each step, in this thread. ``backend`` is there once it is
    loaded; ``error`` says why the thread ended, if it was an error. After :class:`DeviceFailed`
    no request that was put has an end: all are to be handed back.
    """

    def __init__(
        self,
        build: Callable[[], Backend],
        report: Callable[[Sequence[Response]], None],
    ) -> None:
        self._build = build
        self._report = report
        self._inbox: queue.SimpleQueue[Request | Abort | None] = queue.SimpleQueue()
        self._stopping = False
        self._active: dict[int, str] = {}
        self._faults = 0
        self.backend: Backend | None = None
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="mlxq-engine", daemon=True)

    def start(self) -> None:
        """Begin to load."""
        self._thread.start()

    def put(self, request: Request) -> None:
        """Hand over a request; any thread may."""
        self._inbox.put(request)

    def abort(self, request_id: str) -> None:
        """End a request that was put before, at the next step; any thread may.

        One of that name that is put later lives.
        """
        self._inbox.put(Abort(request_id))

    def stop(self) -> None:
        """End after the step in progress, whatever is left."""
        self._stopping = True
        self._inbox.put(None)

    @property
    def ended(self) -> bool:
        """True once the thread has come to its end, or failed to load."""
        return self._thread.ident is not None and not self._thread.is_alive()

    def join(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds; True if the thread has ended."""
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self.backend = self._build()
            self._loop(self.backend.generator)
            self.backend.generator.close()
        except Exception as error:
            if not isinstance(error, MlxqError):
                log.exception("the engine ended")
            self.error = error
            if isinstance(error, DeviceFailed) and self.backend is not None:
                self.backend.generator.close()  # what was proved before goes to the SSD

    def _loop(self, generator: Generator) -> None:
        while not self._stopping:
            for item in self._take(wait=not generator.has_work()):
                if isinstance(item, Abort):
                    generator.abort(item.request_id)
                else:
                    self._insert(generator, item)
            if not self._stopping and generator.has_work():
                self._step(generator)

    def _take(self, *, wait: bool) -> list[Request | Abort]:
        """Everything in the inbox, in order; waits for it if there is nothing else to do."""
        items: list[Request | Abort] = []
        try:
            while (item := self._inbox.get(block=wait and not items)) is not None:
                items.append(item)
        except queue.Empty:
            pass
        return items

    def _insert(self, generator: Generator, request: Request) -> None:
        try:
            [uid] = generator.insert([request])
        except Exception as error:
            if device_fault(error) is not None:
                raise _device_failed(error) from error
            log.exception("insert failed", extra={"request": request.request_id})
            self._report([_failure(request.request_id, error)])
        else:
            self._active[uid] = request.request_id

    def _step(self, generator: Generator) -> None:
        try:
            responses = generator.next()
        except Exception as error:  # noqa: BLE001 - the fault logs it
            responses = self._fault(generator, error)
        else:
            self._faults = 0
        for response in responses:
            if response.finished:
                self._active.pop(response.uid, None)
        self._report(responses)

    def _fault(self, generator: Generator, error: Exception) -> list[Response]:
        """A step failed as a whole: end the rows that were in it, and go on with others.

        Not if the device failed, which is no row's fault: then the step is tried again.
        """
        self._faults += 1
        if isinstance(error, DeviceFailed):
            raise error
        if device_fault(error) is not None:
            log.warning("device error", extra={"reason": str(error), "rows": len(self._active)})
            if self._faults > MAX_DEVICE_FAULTS:
                raise _device_failed(error) from error
            return []
        log.error("a step failed", exc_info=error, extra={"rows": len(self._active)})
        # Which row was to blame, if any, is not known: all may be tried again.
        blame = EngineFailed(f"a step of the engine failed: {type(error).__name__}: {error}")
        ended = [_failure(request_id, blame, uid) for uid, request_id in self._active.items()]
        if self._faults >= MAX_FAULTS:
            self._report(ended)
            raise error
        # All lives of these names that the generator has are in ``ended``.
        for request_id in dict.fromkeys(self._active.values()):
            generator.abort(request_id)
        return ended


def _device_failed(error: Exception) -> DeviceFailed:
    return DeviceFailed(
        f"the device failed ({error}): look at its driver, and at what else uses its memory, then "
        "start the worker again"
    )


def _failure(request_id: str, error: Exception, uid: int = -1) -> Response:
    if not isinstance(error, MlxqError):
        error = GenerationFailed(f"the model raised {type(error).__name__}: {error}")
    return Response(uid, request_id, finish_reason="error", error=error)
