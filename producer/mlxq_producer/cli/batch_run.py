"""``mlxq batch run`` under way, and its end."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlxq_producer.batch import Batch, BatchRun
from mlxq_producer.batch.rows import Row
from mlxq_producer.cli.view import Board, Counts, Entry, View
from mlxq_producer.cli.view.words import reasons
from mlxq_producer.cli.waiting import Waiting
from mlxq_producer.client import Producer


@dataclass
class Shown:
    """Feeds a view with what a run tells of itself."""

    job: BatchRun
    batch: Batch | None = None
    began_with: int = 0
    tokens: int = 0
    board: Board = field(init=False)

    def __post_init__(self) -> None:
        where = f"answers: {self.job.output}"
        self.board = Board(str(self.job.source), self.counts, where=where)

    def run(self, view: View) -> Batch:
        """Do the batch."""
        self._view = view
        producer = Producer(client=self.job.client, queue=self.job.queue)
        with view, Waiting(producer, say=view.note) as self._waiting:
            threading.Thread(target=self._count, daemon=True).start()
            view.begin()
            return self.job.run(self._report, self._each)

    def counts(self) -> Counts:
        """The run in numbers, without the rows of earlier runs."""
        if self.batch is None:
            return Counts()
        counts = self.batch.request_counts
        done = counts.completed + counts.failed - self.began_with
        failed = min(counts.failed, done)
        return Counts(done - failed, failed, self.began_with, self.tokens)

    def _report(self, batch: Batch) -> None:
        if self.batch is None:
            self.began_with = batch.request_counts.completed + batch.request_counts.failed
        self.batch = batch

    def _each(self, row: Row) -> None:
        self._waiting.heard()
        self.tokens += _tokens(row)
        self._view.show(entry(row))

    def _count(self) -> None:
        with suppress(OSError), self.job.source.open("rb") as file:  # the run says what is wrong
            self.board.total = sum(1 for line in file if line.strip())


def entry(row: Row) -> Entry:
    """A row as views show it."""
    name = row["custom_id"] or f"line {line_of(row)}"
    error = row["error"]
    if error is not None:
        return Entry(name, "", error["code"], error["message"], good=False)
    [choice] = row["response"]["body"]["choices"]
    message: dict[str, Any] = choice.get("message") or {"content": choice.get("text")}
    return Entry(name, message["content"] or "")


def line_of(row: Row) -> int:
    """Number of the line that a row is of."""
    return int(row["id"].rpartition("_")[2])


def why_failed(errors: Path) -> Iterator[str]:
    """Why lines have no answer, the most frequent reason first, each with its first line."""
    found: dict[str, tuple[int, int]] = {}
    with errors.open("rb") as file:
        for raw in file:
            row = json.loads(raw)
            code, line = row["error"]["code"], line_of(row)
            number, first = found.get(code, (0, line))
            found[code] = number + 1, min(first, line)
    return reasons({code: (number, f"line {first:,}") for code, (number, first) in found.items()})


def _tokens(row: Row) -> int:
    return 0 if row["response"] is None else row["response"]["body"]["usage"]["completion_tokens"]
