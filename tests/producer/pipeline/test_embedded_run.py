"""One command from pictures to captions: a server, a worker, the bundled model, and their end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import mlxq_producer.samples

SAMPLES = Path(mlxq_producer.samples.__file__).parent
TEXTS = {
    "01-green-square.png": "a green square",
    "02-orange-cross.png": "an orange cross",
    "07-red-cross.jpg": "a red cross",
    "17-yellow-star-purple-triangle.png": None,
    "broken.jpg": None,
}


def run(place: Path, *words: str, **more: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mlxq_producer", "caption", *words]
    return subprocess.run(
        command, cwd=place, capture_output=True, text=True, timeout=300, check=False, **more
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_first_run_needs_one_command(tmp_path):
    folder = tmp_path / "pics"
    (folder / "below").mkdir(parents=True)
    for number, name in enumerate(TEXTS):
        place = folder / "below" if number % 2 else folder
        (place / name).write_bytes((SAMPLES / name).read_bytes())
    (tmp_path / "tmp").mkdir()
    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    words = ["pics", "--embedded", "--prompt", "Describe this image.", "--sidecar", "txt"]
    for before in (0, 4):
        done = run(tmp_path, *words, "-o", "out.jsonl", env=environment)
        assert done.returncode == 3, done.stderr
        assert "error[media_invalid]: pics/broken.jpg" in done.stderr
        assert f"{4 - before} captions" in done.stdout
        found = {path.stem: path.read_text() for path in folder.rglob("*.txt")}
        assert set(found) == {Path(name).stem for name in TEXTS} - {"broken"}
        for name, text in TEXTS.items():
            if text is not None:
                assert found[Path(name).stem] == text + "\n"
        rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
        assert {Path(row["source"]).name for row in rows} == set(TEXTS)
        assert len(rows) == len(TEXTS)
        assert list((tmp_path / "tmp").glob("mlxq*")) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_worker_that_does_not_start_is_told_of(tmp_path):
    (tmp_path / "a.png").write_bytes(b"x")
    words = ["a.png", "--embedded", "--model", "no/such/folder", "--prompt", "x", "-o", "o.jsonl"]
    done = run(tmp_path, *words)
    assert done.returncode == 1
    assert "error[worker_failed]" in done.stderr
    assert "model_not_loaded" in done.stderr
