"""``mlxq cache warm``: what it leaves in a folder, a worker takes up."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mlxq_producer import Producer
from mlxq_worker.bundled import bundled_model_path
from mlxq_worker.cache.disk_care import verify
from mlxq_worker.cache.disk_folder import CacheFolder
from pictures import draw
from worker_process import PATIENCE, StartWorker

TABLE = " ".join(f"fox {n} cat {n + 1};" for n in range(40))


def run(folder: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-m", "mlxq_worker.cache", "warm"]
    return subprocess.run(
        [*command, *map(str, arguments), "--dir", str(folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )


def write(path: Path, *lines: dict[str, Any] | str) -> Path:
    texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    path.write_text("\n".join(texts) + "\n")
    return path


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "red.png"
    draw([("red", "circle", 4), ("blue", "square", 0)]).save(path)
    return path


def chat(words: str, *pictures: Path) -> dict[str, Any]:
    """The table first, then the pictures, so that all may share the table."""
    images = [{"type": "image_url", "image_url": {"url": str(path)}} for path in pictures]
    text = [{"type": "text", "text": TABLE}]
    content = [*text, *images, {"type": "text", "text": words}]
    return {"messages": [{"role": "user", "content": content}]}


def test_a_worker_takes_up_what_was_warmed(
    start_worker: StartWorker, producer: Producer, tmp_path: Path, picture: Path
) -> None:
    asked = chat("Describe the image.", picture)
    prompts = write(tmp_path / "p.jsonl", {**asked, "max_tokens": 30, "temperature": 0.5})
    done = run(tmp_path / "cache", prompts, "--media-root", tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["prompts"] == report["images"] == 1
    assert report["computed_tokens"] > 300
    assert report["cached_tokens"] == report["evicted_blocks"] == report["disk_failed"] == 0
    assert report["written_blocks"] == report["blocks"] > report["computed_tokens"] // 32
    assert report["bytes"] == report["written_bytes"]
    assert verify(CacheFolder(tmp_path / "cache")).clean

    again = run(tmp_path / "cache", prompts, "--media-root", tmp_path, "--json")
    report = json.loads(again.stdout)
    assert report["cached_tokens"] > 0.8 * (report["cached_tokens"] + report["computed_tokens"])
    assert report["written_blocks"] == 0

    options = ("--cache-dir", str(tmp_path / "cache"), "--media-root", str(tmp_path))
    start_worker(*options, model=None)
    warm = producer.result(producer.submit(**asked), wait=PATIENCE)
    other = producer.result(producer.submit(**chat("How many shapes are there?")), wait=PATIENCE)
    assert warm.usage.cached_tokens >= report["cached_tokens"]
    assert other.usage.cached_tokens >= 256  # the table alone


def test_bad_lines_are_reported_and_the_rest_goes_on(tmp_path: Path, picture: Path) -> None:
    prompts = write(
        tmp_path / "p.jsonl",
        "not json",
        '{"prompt": "cut',
        {"prompt": ""},
        "",
        {"prompt": "Describe the image.", "images": [str(tmp_path / "missing.png")]},
        {"prompt": "Describe the image.", "images": ["/etc/hostname"]},
        {"prompt": "Describe the image.", "colour": "red"},
        {"v": 9, "prompt": "Describe the image."},
        {"prompt": "Describe the image.", "sampling": {"max_tokens": -1}, "priority": "soon"},
        {"prompt": TABLE},
        {"prompt": "Describe the image.", "temperature": "hot"},
        {"prompt": "Describe the image.", "images": [str(picture)]},
    )
    done = run(tmp_path / "cache", prompts, "--media-root", tmp_path, "--json")
    assert done.returncode == 3, done.stderr
    report = json.loads(done.stdout)
    assert {failure["line"]: failure["code"] for failure in report["failed"]} == {
        1: "bad_message",
        2: "bad_message",
        3: "empty_prompt",
        5: "media_not_found",
        6: "media_forbidden",
        7: "unsupported",
        8: "unknown_version",
        9: "invalid_job",
        11: "invalid_job",
    }
    [hot] = [failure for failure in report["failed"] if failure["line"] == 11]
    assert 'sampling.temperature "hot": must be a number' in hot["message"]
    assert report["prompts"] == 2
    assert report["blocks"] > 300 // 32


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["none.jsonl"], "none.jsonl"),
        (["p.jsonl", "--model", "./none"], "./none"),
        (["p.jsonl", "--dtype", "int3"], "dtype"),
        (["p.jsonl", "--media-root", "/none"], "/none"),
    ],
)
def test_wrong_settings_are_one_line(tmp_path: Path, options: list[str], named: str) -> None:
    write(tmp_path / "p.jsonl", {"prompt": "Who?"})
    done = run(tmp_path / "cache", tmp_path / options[0], *options[1:])
    assert done.returncode == 2
    assert done.stderr.startswith("error[config]: ")
    assert named in done.stderr
    assert done.stderr.count("\n") == 1


def test_python_of_a_model_runs_if_that_is_said(tmp_path: Path) -> None:
    """As for workers: one line says what the folder needs."""
    folder, mark = tmp_path / "model", tmp_path / "ran"
    shutil.copytree(bundled_model_path(), folder)
    (folder / "own.py").write_text(
        f"open({str(mark)!r}, 'w').close()\nfrom mlx_vlm.models.qwen3_vl import *\n"
    )
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps({**config, "model_type": "no_such", "model_file": "own.py"})
    )
    write(tmp_path / "p.jsonl", {"prompt": "Who?"})
    done = run(tmp_path / "cache", tmp_path / "p.jsonl", "--model", folder)
    assert done.returncode == 2
    assert "error[remote_code_needed]: " in done.stderr
    assert "own.py" in done.stderr
    assert not mark.exists()
    run(tmp_path / "cache", tmp_path / "p.jsonl", "--model", folder, "--trust-remote-code")
    assert mark.exists()
