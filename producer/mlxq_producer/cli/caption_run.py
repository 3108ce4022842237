"""``mlxq caption`` under way: a plan is carried out and shown."""

from __future__ import annotations

import threading
from contextlib import suppress
from functools import partial

from mlxq_producer.cli.caption_end import Ending, where
from mlxq_producer.cli.output import print_json
from mlxq_producer.cli.view import Board, Counts, Entry, Events, View, live_view
from mlxq_producer.client import Producer
from mlxq_producer.pipeline.api import opened
from mlxq_producer.pipeline.counting import chosen, count
from mlxq_producer.pipeline.item import Row
from mlxq_producer.pipeline.plan import Plan
from mlxq_producer.pipeline.run import Run
from mlxq_producer.pipeline.summary import Summary
from mlxq_schemas.errors import MlxqError


def carry_out(plan: Plan, producer: Producer | None, *, embedded: bool, as_json: bool) -> Summary:
    """Do the plan, and tell what came of it, however it ends."""
    board = Board("captioning", Counts, where=where(plan))
    view = Events(board) if as_json else live_view(board)
    total = _Total(plan, board)
    run, complete = None, False
    try:
        with view:
            for note in plan.sources.notes():
                view.note(note)
            if producer is not None and not producer.status().workers:
                view.note("no worker is up, so the jobs wait: start mlxq worker, or use --embedded")
            total.start()
            with opened(plan, producer=producer, embedded=embedded, say=view.say) as run:
                board.counts = partial(_counts, run.summary)
                view.begin()
                for row in run.rows():
                    _show(row, view, as_json=as_json)
        complete = True
    finally:
        if run is not None:
            total.settle(run)
            not_begun = 0 if complete else total.not_begun(run.summary)
            _tell(Ending(run, plan, board, complete, not_begun), as_json=as_json)
    assert run is not None  # noqa: S101 - for the type checker: without a run there is an error
    return run.summary


def _counts(summary: Summary) -> Counts:
    before = summary.items - summary.done - summary.failed
    return Counts(summary.done, summary.failed, before, summary.completion_tokens)


def _show(row: Row, view: View, *, as_json: bool) -> None:
    if as_json:
        print_json({"type": "item", **row.as_dict()})
    view.show(Entry(row.source, row.text, row.code, row.message or "", good=row.ok))


def _tell(ending: Ending, *, as_json: bool) -> None:
    if as_json:
        left = {"not_begun": ending.not_begun, "complete": ending.complete}
        print_json({"type": "summary", **ending.run.summary.as_dict(), **left})
    else:
        ending.tell()


class _Total:
    """Counts the items beside the work: a folder of millions takes a while, and may change."""

    def __init__(self, plan: Plan, board: Board) -> None:
        self._plan = plan
        self._board = board
        self._all: int | None = None
        self._thread = threading.Thread(target=self._count, daemon=True)

    def start(self) -> None:
        """Begin to count; the board has the total once it is known."""
        self._thread.start()

    def settle(self, run: Run) -> None:
        """The run is over: what ``--limit`` left out is known, if the total is."""
        limit, summary = self._plan.choice.limit, run.summary
        if limit is not None and self._all is not None:
            summary.left_out += max(self._all - summary.left_out - max(limit, summary.items), 0)

    def not_begun(self, summary: Summary) -> int:
        """Items that were not looked at."""
        if self._board.total is None:
            return 0
        return max(self._board.total - summary.items - summary.dropped, 0)

    def _count(self) -> None:
        with suppress(OSError, MlxqError, ValueError):  # whoever reads the items says why
            self._all = count(self._plan.sources)
            if self._all is not None:
                self._board.total = chosen(self._plan.choice, self._all)
