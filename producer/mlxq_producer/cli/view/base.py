"""What every view can do."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Self

from mlxq_producer.cli.view.board import Board, Entry


class View:
    """Shows a run while it is under way, from its :class:`Board`; this one shows nothing.

    The run sets the board's counts, and calls the methods here.
    """

    def __init__(self, board: Board) -> None:
        self.board = board

    def say(self, text: str) -> None:
        """Tell what is being done before the work, or instead of it."""
        self.board.stage = text

    def note(self, text: str) -> None:
        """Tell what must not be missed."""

    def begin(self) -> None:
        """All is ready: the work begins."""
        self.board.begin()

    def show(self, entry: Entry) -> None:
        """An item has begun, grown or ended."""
        self.board.show(entry)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return None


class Ticking(View, ABC):
    """A view that also acts by the clock, in a thread of its own, while it is open."""

    def __init__(self, board: Board) -> None:
        super().__init__(board)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @abstractmethod
    def pauses(self) -> Iterator[float]:
        """Seconds before each tick; without end."""

    @abstractmethod
    def tick(self) -> None:
        """Act."""

    def _run(self) -> None:
        for pause in self.pauses():
            if self._ended.wait(pause):
                return
            self.tick()

    def __enter__(self) -> Self:
        self._thread.start()
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()
