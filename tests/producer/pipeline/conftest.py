"""A folder of pictures, a worker that answers, and the command."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from answering_worker import AnsweringWorker
from mlxq_producer.cli import app

Mlxq = Callable[..., Result]


@pytest.fixture
def worker(server: Any, queue: str) -> Iterator[AnsweringWorker]:
    """A worker that answers at once."""
    with AnsweringWorker(server.url, queue) as running:
        yield running


@pytest.fixture
def caption_command(server: Any, queue: str, monkeypatch: pytest.MonkeyPatch) -> Mlxq:
    """Runs ``mlxq caption`` in this process, on the test's queue."""
    monkeypatch.setenv("MLXQ_REDIS_URL", server.url)
    monkeypatch.setenv("MLXQ_QUEUE", queue)

    def run(*args: str | Path, stdin: str | bytes | None = None) -> Result:
        result = CliRunner().invoke(app, ["caption", *map(str, args)], input=stdin)
        assert result.exception is None or isinstance(result.exception, SystemExit), (
            result.exception
        )
        return result

    return run


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Nested folders: four pictures, a duplicate, a broken one, a loop, and what is no picture."""
    folder = tmp_path / "pics"
    (folder / "süb dir").mkdir(parents=True)
    (folder / ".hidden").mkdir()
    (folder / "a.png").write_bytes(b"one")
    (folder / "b.jpg").write_bytes(b"two")
    (folder / "notes.md").write_bytes(b"no picture")
    (folder / "süb dir" / "c d.PNG").write_bytes(b"three")
    (folder / "süb dir" / "same as a.webp").write_bytes(b"one")
    (folder / "süb dir" / "z.png").write_bytes(b"broken")
    (folder / ".hidden" / "no.png").write_bytes(b"hidden")
    (folder / "süb dir" / "loop").symlink_to("..")
    return folder
