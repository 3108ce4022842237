"""A run where there is no terminal: lines for a log."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Final, Self, TextIO

from mlxq_producer.cli.failures import complain_of_item
from mlxq_producer.cli.view.base import View
from mlxq_producer.cli.view.board import Board, Entry
from mlxq_producer.cli.view.words import counted, rates, timed

FIRST_SECONDS: Final = 5.0
LONGEST_SECONDS: Final = 60.0
"""Between two lines about the progress: each time twice as long, up to this."""


class Lines(View):
    """Failures as they come, and how far the run is now and then."""

    def __init__(self, board: Board, to: TextIO) -> None:
        super().__init__(board)
        self._to = to
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._tell, daemon=True)

    def say(self, text: str) -> None:
        """Print it."""
        super().say(text)
        self.note(text)

    def note(self, text: str) -> None:
        """Print it."""
        print(text, file=self._to, flush=True)

    def show(self, entry: Entry) -> None:
        """Print it if it failed."""
        super().show(entry)
        if entry.code is not None and not entry.good:
            complain_of_item(entry.name, entry.code, entry.message)

    def progress(self) -> str:
        """A line that says how far the run is."""
        board = self.board
        return ", ".join(filter(None, [counted(board), rates(*board.speed()), timed(board)]))

    def _tell(self) -> None:
        pause = FIRST_SECONDS
        while not self._ended.wait(pause):
            pause = min(2 * pause, LONGEST_SECONDS)
            if not self.board.stage:
                self.note(self.progress())

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()
