"""How a run of captions looks: a bar in a terminal, plain lines elsewhere, events for scripts."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from mlxq_producer.cli.output import print_json
from mlxq_producer.pipeline.item import Row
from mlxq_producer.pipeline.summary import Summary

LINE_SECONDS: Final = 5.0
"""Between two lines about the progress, where there is no bar."""


class View:
    """Shows nothing but what follows from its parts; base of the others."""

    def __init__(self, count: Callable[[], int | None]) -> None:
        self.total: int | None = None
        self._count = count
        self._began = time.monotonic()

    def begin(self) -> None:
        """All is ready: rates count from here."""
        self._began = time.monotonic()

    def say(self, text: str) -> None:
        """Tell what takes a while."""

    def row(self, row: Row, summary: Summary) -> None:
        """A row was written."""

    def rates(self, summary: Summary) -> tuple[float, float]:
        """Items and tokens a second, since the first."""
        seconds = max(time.monotonic() - self._began, 1e-6)
        return (summary.done + summary.failed) / seconds, summary.completion_tokens / seconds

    def __enter__(self) -> Self:
        # Beside the work: a folder of millions takes long to count, and may change meanwhile.
        threading.Thread(target=self._count_items, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None

    def _count_items(self) -> None:
        try:
            self.total = self._count()
        except OSError:
            self.total = None


class Events(View):
    """One JSON object a line on stdout."""

    def say(self, text: str) -> None:
        """An event of its own."""
        print_json({"type": "stage", "text": text})

    def row(self, row: Row, summary: Summary) -> None:
        """The row."""
        del summary
        print_json({"type": "item", **row.as_dict()})


class Lines(View):
    """Failures as they come, and a line about the progress now and then, on stderr."""

    def __init__(self, count: Callable[[], int | None]) -> None:
        super().__init__(count)
        self._next = self._began + LINE_SECONDS

    def say(self, text: str) -> None:
        """Print it."""
        print(text, file=sys.stderr, flush=True)

    def row(self, row: Row, summary: Summary) -> None:
        """Print the progress if it is time."""
        del row
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + LINE_SECONDS
        items, tokens = self.rates(summary)
        left = ""
        if self.total is not None and items:
            rest = max(self.total - summary.items, 0)
            left = f" of {self.total}, about {rest / items:.0f} s left"
        self.say(
            f"{summary.items}{left}: {items:.1f} items/s, {tokens:.0f} tokens/s, "
            f"{summary.failed} failed"
        )


class Bar(View):
    """A progress bar with rate, time left, tokens a second and failures, on stderr."""

    def __init__(self, count: Callable[[], int | None]) -> None:
        super().__init__(count)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[rates]}"),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._progress.add_task("captions", total=None, rates="")

    def say(self, text: str) -> None:
        """Print it above the bar."""
        self._progress.console.print(text, markup=False)

    def row(self, row: Row, summary: Summary) -> None:
        """Move the bar."""
        del row
        items, tokens = self.rates(summary)
        text = f"{items:.1f}/s  {tokens:.0f} tokens/s  {summary.failed} failed"
        self._progress.update(self._task, completed=summary.items, total=self.total, rates=text)

    def __enter__(self) -> Self:
        self._progress.start()
        return super().__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()


def choose_view(count: Callable[[], int | None], *, as_json: bool) -> View:
    """The view that fits where the output goes."""
    if as_json:
        return Events(count)
    return Bar(count) if sys.stderr.isatty() else Lines(count)
