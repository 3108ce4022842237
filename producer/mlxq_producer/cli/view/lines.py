"""A run where there is no terminal: lines for a log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TextIO

from mlxq_producer.cli.failures import complain_of_item
from mlxq_producer.cli.view.base import Ticking
from mlxq_producer.cli.view.board import Board, Entry
from mlxq_producer.cli.view.words import counted, rates, timed

FIRST_SECONDS: Final = 5.0
LONGEST_SECONDS: Final = 60.0
"""Between two lines about the progress: each time twice as long, up to this."""


class Lines(Ticking):
    """Failures as they come, and how far the run is now and then."""

    def __init__(self, board: Board, to: TextIO) -> None:
        super().__init__(board)
        self._to = to

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
        if entry.failed:
            complain_of_item(entry.name, entry.code or "", entry.message)

    def progress(self) -> str:
        """A line that says how far the run is."""
        board = self.board
        return ", ".join(filter(None, [counted(board), rates(*board.speed()), timed(board)]))

    def pauses(self) -> Iterator[float]:
        """Ever longer ones."""
        pause = FIRST_SECONDS
        while True:
            yield pause
            pause = min(2 * pause, LONGEST_SECONDS)

    def tick(self) -> None:
        """Print how far the run is."""
        if not self.board.stage:
            self.note(self.progress())
