"""Batch files, who answers them, and runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from batch_files import Answering
from mlxq_producer.batch import BatchRun

WriteLines = Callable[[Iterable[Any]], Path]
Run = Callable[..., BatchRun]


@pytest.fixture
def answering(worker: Any) -> Iterator[Answering]:
    """A worker thread on the test's queue."""
    with Answering(worker) as running:
        yield running


@pytest.fixture
def request_answers(worker: Any) -> Callable[[], Answering]:
    """Makes worker threads on the test's queue, for part of a test."""
    return lambda: Answering(worker)


@pytest.fixture
def write_lines(tmp_path: Path) -> WriteLines:
    """Writes ``in.jsonl``: texts as they are, other values as JSON."""

    def write(lines: Iterable[Any]) -> Path:
        path = tmp_path / "in.jsonl"
        texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
        path.write_text("".join(f"{text}\n" for text in texts))
        return path

    return write


@pytest.fixture
def batch_run(redis_client: Any, queue: str, tmp_path: Path) -> Run:
    """A run of ``in.jsonl`` into ``out.jsonl`` and ``err.jsonl``."""

    def make(**settings: Any) -> BatchRun:
        files = [tmp_path / f"{name}.jsonl" for name in ("in", "out", "err")]
        return BatchRun(redis_client, queue, *files, **settings)

    return make
