"""A run in a terminal: how far it is, and its latest items, as many as fit."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from itertools import repeat
from typing import Final, Self

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from mlxq_producer.cli.view.base import Ticking
from mlxq_producer.cli.view.board import Board, Entry
from mlxq_producer.cli.view.words import counted, fitted, one_line, outcome, rates, timed

WIDE: Final = 100
"""Columns from which on prompts are shown too."""
NAME_SHARE: Final = 0.3
PROMPT_CELLS: Final = 28
FRAMES_A_SECOND: Final = 8
_HEAD: Final = 3


class Screen(Ticking):
    """Redraws the end of the screen; failures and notes stay above it."""

    def __init__(self, board: Board, console: Console) -> None:
        super().__init__(board)
        self._console = console
        self._live = Live(
            console=console,
            get_renderable=self._picture,
            auto_refresh=False,
            transient=True,
            vertical_overflow="crop",
        )
        # Not rich's own thread: what it draws and what is printed meanwhile may change places.
        self._lock = threading.Lock()

    def note(self, text: str) -> None:
        """Print it above the live lines."""
        self._print(Text(text))

    def show(self, entry: Entry) -> None:
        """Show it; what failed stays above the live lines."""
        super().show(entry)
        if entry.failed:
            line = f"error[{entry.code}]: {entry.name}: {entry.why}"
            self._print(Text(one_line(line), style="red"))

    def _print(self, text: Text) -> None:
        with self._lock:
            self._console.print(text)

    def pauses(self) -> Iterator[float]:
        """As long as a frame is shown."""
        return repeat(1 / FRAMES_A_SECOND)

    def tick(self) -> None:
        """Draw a frame."""
        with self._lock:
            self._live.refresh()

    def _picture(self) -> RenderableType:
        return picture(self.board, self._console.width, self._console.height)

    def __enter__(self) -> Self:
        self._live.start()
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._live.stop()


def picture(board: Board, width: int, height: int) -> RenderableType:
    """The live lines: never more than half of the window."""
    rows = _rows(board, max(height // 2 - _HEAD, 1))
    return Group(*_head(board, width), *entry_lines(rows, width))


def entry_lines(entries: list[Entry], width: int) -> list[Text]:
    """Items, a line each: name and text, in a wide window the prompt too."""
    if not entries:
        return []
    longest = max(cell_len(one_line(entry.name)) for entry in entries)
    columns = [min(longest, int(width * NAME_SHARE))]
    if width >= WIDE and any(entry.prompt for entry in entries):
        columns.append(PROMPT_CELLS)
    return [_entry_line(entry, columns, width) for entry in entries]


def print_latest(board: Board) -> None:
    """In a terminal the last texts themselves, as many as leave room for the end of a run."""
    if sys.stdout.isatty():
        console = Console(highlight=False)
        good = [entry for entry in list(board.latest) if entry.good]
        for line in entry_lines(good[-(console.height // 2) :], console.width):
            console.print(line)


def _entry_line(entry: Entry, columns: list[int], width: int) -> Text:
    line = Text(fitted(one_line(entry.name), columns[0]), no_wrap=True)
    for cells in columns[1:]:
        prompt = Text(one_line(entry.prompt), "dim", no_wrap=True)
        prompt.truncate(cells, overflow="ellipsis", pad=True)
        line.append("  ").append_text(prompt)
    line.append("  ").append_text(_told(entry))
    line.truncate(width, overflow="ellipsis")
    return line


def _head(board: Board, width: int) -> Iterator[RenderableType]:
    if board.stage:
        yield _ends(board.stage, timed(board), width)
        return
    yield _ends(f"{board.title}: {counted(board)}", timed(board), width)
    if board.total:
        bar, done = Table.grid(expand=True), min(board.counts().seen, board.total)
        bar.add_row(ProgressBar(total=board.total, completed=done))
        yield bar
    told = "; ".join(filter(None, [rates(*board.speed()), board.where]))
    tail = Text(told, "dim", no_wrap=True)
    tail.truncate(width, overflow="ellipsis")
    yield tail


def _ends(left: str, right: str, width: int) -> Text:
    """Two texts at the ends of a line; the left one gives way."""
    room = max(width - cell_len(right) - 2, 0)
    text = Text(one_line(left), style="bold", no_wrap=True)
    text.truncate(room, overflow="ellipsis", pad=True)
    return text.append(f"  {right}", "not bold")


def _rows(board: Board, count: int) -> list[Entry]:
    """The latest items that have ended, then those under way."""
    under_way, ended = list(board.under_way.values()), list(board.latest)
    growing = under_way[: max(count - len(ended), count // 2)]
    return [*ended[max(len(ended) - (count - len(growing)), 0) :], *growing]


def _told(entry: Entry) -> Text:
    told = outcome(entry)
    if not entry.ended:
        return Text(told or "...", "dim")
    if not entry.good:
        return Text(told if entry.code else f"WRONG: {told}", "red")
    return Text(told, "dim" if entry.code else "")
