"""What every view can do."""

from __future__ import annotations

from types import TracebackType
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None
