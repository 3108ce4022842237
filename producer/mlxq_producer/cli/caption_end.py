"""The end of ``mlxq caption``, for people: what became of everything that was found."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from mlxq_producer.cli.failures import complain_of_item
from mlxq_producer.cli.view import Board
from mlxq_producer.cli.view.screen import print_latest
from mlxq_producer.cli.view.words import clock, one_line, rates, reasons
from mlxq_producer.pipeline.plan import Plan
from mlxq_producer.pipeline.run import Run
from mlxq_producer.pipeline.summary import Summary

EDITED_SHOWN: Final = 20
"""Edited files that are named at the end."""


@dataclass(frozen=True)
class Ending:
    """How a run ended; ``not_begun`` items were not looked at, as far as anybody knows."""

    run: Run
    plan: Plan
    board: Board
    complete: bool
    not_begun: int

    def tell(self) -> None:
        """Print it: what is to be mended on stderr, what there is on stdout."""
        summary = self.run.summary
        for row in self.run.still_failed:
            complain_of_item(row.source, row.code or "failed", row.message)
        if (more := summary.still_failed - len(self.run.still_failed)) > 0:
            print(f"... and {more:,} more that failed in an earlier run", file=sys.stderr)
        print_latest(self.board)
        self._tell_account()
        self._tell_edited()
        worked = summary.done + summary.failed
        speed = f" in {clock(self.board.elapsed)}: {rates(*self.board.average())}" if worked else ""
        print(f"{summary.done:,} caption{'s' * (summary.done != 1)}{speed}")
        print(f"captions: {where(self.plan)}")
        if not self.complete:
            print("ended early: the same line goes on where this one stopped", file=sys.stderr)
        elif not summary.ok:
            print("the same line with --retry-failed does the failed ones again", file=sys.stderr)

    def _tell_account(self) -> None:
        lines = [(number, words) for number, words in self._account() if number]
        found = self.run.summary.found + self.not_begun
        width = len(f"{found:,}")
        print(f"{found:,} found")
        for number, words in lines:
            first, *rest = words.split("\n")
            print(f"  {number:>{width},} {first}")
            for line in rest:
                print(f"  {'':{width}}   {line}")

    def _account(self) -> Iterator[tuple[int, str]]:
        summary = self.run.summary
        yield summary.done, "captioned"
        yield summary.skipped, "done by an earlier run"
        yield summary.kept, "already had a caption, and kept it"
        yield summary.repeated, "named twice"
        yield summary.left_out, f"left out ({_left_out(self.plan)})"
        yield summary.passed_over.total(), summary.passed_over.told(72)
        yield summary.failed, f"failed: {_reasons(summary)}"
        yield summary.still_failed, _still_failed(summary)
        yield summary.dropped, self._dropped()
        yield self.not_begun, "not begun"

    def _dropped(self) -> str:
        if self.plan.detach:
            return "under way, and going on: the same line fetches them"
        return "under way, and cancelled"

    def _tell_edited(self) -> None:
        summary = self.run.summary
        if not summary.edited:
            return
        print("edited since mlxq wrote them, and kept (--existing overwrite replaces them):")
        for name in summary.edited_files[:EDITED_SHOWN]:
            print(f"  {name}")
        if summary.edited > EDITED_SHOWN:
            print(f"  ... and {summary.edited - EDITED_SHOWN:,} more")


def where(plan: Plan) -> str:
    """Where a run's captions go."""
    places = [str(path) for path in plan.outputs]
    if plan.sidecars:
        kinds = ", ".join(f".{kind}" for kind in plan.sidecars)
        home = "beside the pictures" if plan.out_dir is None else f"in {plan.out_dir}"
        places.insert(0, f"{home} ({kinds})")
    return one_line(", ".join(places))


def _left_out(plan: Plan) -> str:
    choice = plan.choice
    options = [
        f"--shard {choice.shard[0]}/{choice.shard[1]}" if choice.shard else "",
        f"--limit {choice.limit}" if choice.limit is not None else "",
        "--retry-failed: these have not failed" if plan.retry_failed else "",
    ]
    return ", ".join(filter(None, options))


def _still_failed(summary: Summary) -> str:
    told = "failed in an earlier run"
    return told if summary.failed else f"{told}: {_reasons(summary)}"


def _reasons(summary: Summary) -> str:
    """As in ``3 media_invalid (pics/a.png ...), 1 timeout (pics/b.png)``."""
    found = {code: (one.items, one.example) for code, one in summary.reasons.items()}
    return ", ".join(reasons(found))
