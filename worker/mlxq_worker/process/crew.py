"""Threads that do tasks which may hang: who hangs is replaced, as long as not too many do."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from mlxq_worker.queue.duty import THREAD_PREFIX

log = logging.getLogger(__name__)

T = TypeVar("T")

PATIENCE: Final = 30.0
"""Seconds after which a task counts as hanging, also if it is still wanted."""
UNWANTED_PATIENCE: Final = 1.0
"""The same for one that nobody waits for any more."""


@dataclass(eq=False)
class _Hand(Generic[T]):
    """A thread: what it is at, since when (monotonic seconds), and if another has its place."""

    task: T | None = None
    since: float = 0.0
    replaced: bool = False


class Crew(Generic[T]):
    """``size`` threads that call ``work`` with one task after another.

    ``wanted`` says whether anybody still waits for a task. At most ``spares`` threads may hang
    and be replaced; :attr:`stuck` is true once all threads hang and none can be added.
    """

    def __init__(
        self,
        name: str,
        size: int,
        work: Callable[[T], None],
        *,
        wanted: Callable[[T], bool] = lambda _: True,
        spares: int = 0,
    ) -> None:
        self._name = name
        self._size = size
        self._work = work
        self._wanted = wanted
        self._spares = spares
        self._tasks: queue.SimpleQueue[T | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._hands: list[_Hand[T]] = []
        self._closed = False
        self.stuck = False

    def put(self, task: T) -> None:
        """Have a task done when a thread is free; any thread may."""
        self._tasks.put(task)
        with self._lock:
            if not self._closed and sum(not h.replaced for h in self._hands) < self._size:
                self._add()

    def take_back(self) -> list[T]:
        """The tasks that no thread has begun: they are the caller's again."""
        tasks: list[T] = []
        try:
            while (task := self._tasks.get_nowait()) is not None:
                tasks.append(task)
        except queue.Empty:
            pass
        return tasks

    def look(self) -> None:
        """Replace who hangs, within the bound."""
        now = time.monotonic()
        with self._lock:
            hanging = [hand for hand in self._hands if self._hangs(hand, now)]
            replaced = sum(hand.replaced for hand in self._hands)
            for hand in hanging:
                if hand.replaced or replaced >= self._spares or self._closed:
                    continue
                hand.replaced = True
                replaced += 1
                log.warning("a thread hangs", extra={"crew": self._name, "spares": replaced})
                self._add()
            self.stuck = len(self._hands) > 0 and len(hanging) == len(self._hands)

    def close(self) -> None:
        """Begin no more; what is in progress ends by itself."""
        with self._lock:
            self._closed = True
            hands = len(self._hands)
        self.take_back()
        for _ in range(hands):
            self._tasks.put(None)

    def _hangs(self, hand: _Hand[T], now: float) -> bool:
        task = hand.task
        if task is None:
            return False
        return now - hand.since > (PATIENCE if self._wanted(task) else UNWANTED_PATIENCE)

    def _add(self) -> None:
        hand = _Hand[T]()
        self._hands.append(hand)
        name = f"{THREAD_PREFIX}{self._name}"
        threading.Thread(target=self._serve, args=(hand,), name=name, daemon=True).start()

    def _serve(self, hand: _Hand[T]) -> None:
        while not hand.replaced and (task := self._tasks.get()) is not None:
            hand.since, hand.task = time.monotonic(), task
            try:
                self._work(task)
            except Exception:
                log.exception("a task failed", extra={"crew": self._name})
            hand.task = None
        with self._lock:
            self._hands.remove(hand)
