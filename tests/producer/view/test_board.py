"""Speed, time left, and what a view shows of a run."""

from __future__ import annotations

import re

import pytest
from rich.console import Console

from mlxq_producer.cli.view import Board, Counts, Entry
from mlxq_producer.cli.view.screen import entry_lines, picture
from mlxq_producer.cli.view.words import clock, counted, fitted, one_line, timed


class Clocked:
    """A board with a clock of its own."""

    def __init__(self, total: int | None = 40) -> None:
        self.time = 100.0
        self.counts = Counts()
        self.board = Board(
            "captioning",
            lambda: self.counts,
            total=total,
            where="beside the pictures (.txt)",
            clock=lambda: self.time,
        )

    def work(self, items: int, seconds: float, tokens: int = 30) -> None:
        """So many items in so many seconds, evenly."""
        for _ in range(items):
            self.time += seconds / items
            done, failed, before, all_tokens = self.counts
            self.counts = Counts(done + 1, failed, before, all_tokens + tokens)
            self.board.speed()


@pytest.fixture
def run() -> Clocked:
    return Clocked()


def test_no_end_is_told_that_nobody_can_know(run):
    run.work(4, 0.1)
    assert run.board.left() is None  # 4 of 40 in no time: not "1 s"
    run.time += 10
    assert run.board.left() is None  # too few
    run.work(4, 2)
    assert run.board.left() == pytest.approx(32 / (8 / 12.1))


def test_an_unknown_total_has_no_end():
    run = Clocked(total=None)
    run.work(50, 50)
    assert (run.board.left(), counted(run.board)) == (None, "50")


def test_speed_is_that_of_late_and_the_average_that_of_all(run):
    run.board.total = 1000
    run.work(100, 10)
    run.work(60, 60)
    items, tokens = run.board.speed()
    assert items == pytest.approx(1, rel=0.05)
    assert tokens == pytest.approx(30, rel=0.05)
    assert run.board.average() == pytest.approx((160 / 70, 4800 / 70))
    assert run.board.left() == pytest.approx(840, rel=0.05)
    run.time += 300  # nothing comes: nobody knows the end
    assert run.board.left() is None


def test_what_needed_no_work_counts_for_place_not_for_speed(run):
    run.counts = Counts(before=30)
    run.work(5, 10)
    assert counted(run.board) == "35 of 40, 30 there already"
    assert run.board.left() == pytest.approx(10)


def test_work_begins_when_all_is_ready(run):
    run.board.stage = "loading the model"
    run.time += 500
    run.board.begin()
    assert (run.board.elapsed, run.board.stage) == (0, "")


def test_more_than_were_counted_are_no_fault(run):
    run.work(41, 1)
    assert counted(run.board) == "41 of 41"


def test_counts_clocks_and_names():
    assert [clock(s) for s in (0, 7.4, 59.6, 3600, 90061)] == [
        *("0:00", "0:07", "1:00", "1:00:00", "25:01:01"),
    ]
    assert fitted("short.png", 12) == "short.png   "
    assert fitted("folder/long-name.png", 12) == "…ng-name.png"
    assert fitted("図形図形図形.png", 9) in {"…図形.png", "…形.png  ", "…図形.png "}
    assert one_line("a\nb\x1b[2J\u202ec 👩\u200d🚒 é") == "a b?[2J?c 👩\u200d🚒 é"


def drawn(board: Board, width: int, height: int) -> list[str]:
    console = Console(width=width, height=height, color_system=None, force_terminal=True)
    with console.capture() as capture:
        console.print(picture(board, width, height))
    return [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in capture.get().splitlines()]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (40, 10), (20, 6), (200, 5)])
def test_the_live_lines_fit(run, width, height):
    for number in range(60):
        run.board.show(Entry(f"folder/of some length/picture-{number:03}.png", "a caption " * 20))
    run.board.show(Entry("growing", "a", ended=False, prompt="a prompt " * 9))
    run.work(7, 20)
    lines = drawn(run.board, width, height)
    assert len(lines) <= max(height // 2, 4)
    assert max(map(len, lines)) <= width
    assert lines[0].startswith("captioning")
    if width >= 80:
        shown = [line for line in lines if "picture-" in line]
        # The text has most of the width.
        assert all(line.index(" a ") <= 0.3 * width + 2 + 30 * (width >= 100) for line in shown)
        assert height < 10 or "picture-059.png" in shown[-1]
        assert height < 10 or lines[-1].startswith("growing")
        assert "7 of 40" in lines[0]
        assert lines[0].endswith("0:20, about 1:34 left")


def test_before_the_work_only_the_stage_is_shown(run):
    run.board.total = None
    run.board.stage = "loading the model"
    run.time += 12
    assert drawn(run.board, 80, 24) == [f"loading the model{'0:12':>63}"]
    assert timed(run.board) == "0:12"


def test_hostile_names_and_texts_stay_on_their_line():
    entries = [
        Entry("a\x1b[31m[bold]\n.png", "[red]x[/red]\r\n\x07\u202egnp"),
        Entry("b.png", code="media_invalid", message="b.png: line\nbreak\x9b2J", good=False),
    ]
    lines = [line.plain for line in entry_lines(entries, 80)]
    assert lines == [
        "a?[31m[bold] .png  [red]x[/red] ??gnp",
        "b.png              media_invalid: line break?2J",
    ]
