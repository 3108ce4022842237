"""The examples of docs/pipelines.md run as they stand."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[3] / "docs" / "pipelines.md").read_text()
LINES = [block.strip() for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)]
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def place(tmp_path, pictures, monkeypatch) -> Path:
    """A working folder with what the page's lines name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "e.png").write_bytes(b"five")
    (tmp_path / "rows.csv").write_text("image,tags\npics/a.png,x\npics/b.jpg,y\n")
    (pictures / "süb dir" / "z.png").unlink()
    return tmp_path


def test_the_lines_for_a_shell(place, caption_command, worker):
    assert len(LINES) >= 8
    assert LINES[0] in (Path(__file__).parents[3] / "README.md").read_text().replace(
        '"..."', '"Describe the image."'
    )
    for line in LINES:
        assert "\n" not in line
        first, pipe, last = line.rpartition("| ")
        _, _, *words = shlex.split(last)
        given = None
        if pipe:
            find = ["bash", "-c", first.removesuffix("| ")]
            given = subprocess.run(find, capture_output=True, check=True).stdout
        done = caption_command(*(word for word in words if word != "--embedded"), stdin=given)
        assert (done.exit_code, done.stderr) == (0, ""), line
    made = {path.name for path in place.iterdir()}
    assert {"captions.jsonl", "found.jsonl", "tagged.csv", "captions", "events.jsonl"} <= made
    assert {"data-000000.tar", "rows.jsonl"} <= made
    assert (place / "pics" / "a.txt").read_text().startswith("Describe the image. ")
    assert (place / "captions" / "a.caption").read_text().startswith("sks, Describe")
    assert "Tags: x. Describe a.png." in (place / "tagged.csv").read_text()


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_programs(place, server, queue, worker, monkeypatch, program):
    monkeypatch.setenv("MLXQ_REDIS_URL", server.url)
    code = program.replace("AsyncProducer()", f"AsyncProducer(queue={queue!r})")
    code = code.replace('outputs="python.jsonl")', 'outputs="python.jsonl", producer=producer)')
    head = f"from mlxq_producer import Producer\nproducer = Producer(queue={queue!r})\n"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"{head}{code}\nproducer.close()"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "captions" in done.stdout or done.stdout.count("What is") == 200
