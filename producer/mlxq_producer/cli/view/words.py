"""Counts, times and names as people read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from rich.cells import cell_len, chop_cells, set_cell_size

from mlxq_producer.cli.view.board import Board, Entry

_JOINERS: Final = "\u200c\u200d"
"""Join letters and emoji; not printable by themselves."""
REASONS_SHOWN: Final = 8


def one_line(text: str) -> str:
    """Text on one line; what could move a terminal's cursor or turn its text around is a ``?``."""
    line = " ".join(text.split())
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() or c in _JOINERS else "?" for c in line)


def fitted(name: str, width: int) -> str:
    """A name in ``width`` cells; what tells paths apart is at their end, so that is kept."""
    if cell_len(name) <= width:
        return set_cell_size(name, width)
    rest = chop_cells(name[::-1], width - 1)[0][::-1]
    return set_cell_size(f"…{rest}", width)


def clock(seconds: float) -> str:
    """As in ``0:07``, ``12:30``, ``1:02:03``."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def counted(board: Board) -> str:
    """How far a run is: ``12 of 40, 1 failed``."""
    counts = board.counts()
    total = "" if board.total is None else f" of {max(board.total, counts.seen):,}"
    failed = f", {counts.failed:,} failed" if counts.failed else ""
    before = f", {counts.before:,} there already" if counts.before else ""
    return f"{counts.seen:,}{total}{before}{failed}"


def timed(board: Board) -> str:
    """How long it has taken and will take: ``0:08, about 0:19 left``."""
    left = board.left()
    return clock(board.elapsed) + ("" if left is None else f", about {clock(left)} left")


def rates(items: float, tokens: float) -> str:
    """As in ``1.5 items/s, 63 tokens/s``; empty where nothing was done."""
    if not items:
        return ""
    return f"{items:,.1f} items/s" + (f", {tokens:,.0f} tokens/s" if tokens else "")


def reasons(found: Mapping[str, tuple[int, str]]) -> Iterator[str]:
    """How many failed with each code, the most first: ``3 media_invalid (a.png ...)``.

    ``found`` has by code how many, and an example.
    """
    ranked = sorted(found.items(), key=lambda pair: -pair[1][0])
    for code, (number, example) in ranked[:REASONS_SHOWN]:
        yield f"{number:,} {code} ({one_line(example)}{' ...' * (number > 1)})"
    if more := ranked[REASONS_SHOWN:]:
        yield f"{sum(number for _, (number, _) in more):,} of {len(more)} other codes"


def outcome(entry: Entry) -> str:
    """An item's text, or why it has none."""
    if entry.code is None:
        return one_line(entry.text)
    return one_line(f"{entry.code}: {entry.why}")
