"""Ctrl-C and SIGTERM: what is done stays, what is under way ends, and the same line goes on."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from answering_worker import AnsweringWorker
from mlxq_producer import Producer
from worker_process import eventually

WAIT = 120
ENDS = pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["Ctrl-C", "TERM"]
)


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = tmp_path / "pics"
    folder.mkdir()
    for number in range(10):
        (folder / f"{number}.png").write_text(f"picture {number}")
    (folder / "0 notes.md").write_text("none")
    return folder


def start(server, queue, folder: Path, *words: str) -> subprocess.Popen[str]:
    where = ("--redis-url", server.url, "--queue", queue)
    line = ("caption", str(folder), "--prompt", "x", "-o", str(folder.parent / "o.jsonl"))
    command = [sys.executable, "-m", "mlxq_producer", *line, "--window", "4", *where, *words]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)


def account(stdout: str) -> dict[str, int]:
    """The numbers of the end, by their words."""
    lines = re.findall(r"^ +([\d,]+) ([^(:\n]*[a-z])", stdout, re.MULTILINE)
    return {words: int(number.replace(",", "")) for number, words in lines}


def rows(folder: Path) -> list[str]:
    text = (folder.parent / "o.jsonl").read_text()
    return [json.loads(line)["source"] for line in text.splitlines()]


@ENDS
def test_jobs_under_way_are_cancelled(server, queue, pictures, number, status):
    with Producer(server.url, queue) as producer:
        process = start(server, queue, pictures)
        eventually(lambda: sum(producer.status().depth.values()) == 4)
        process.send_signal(number)
        out, error = process.communicate(timeout=WAIT)
        assert process.returncode == status
        assert sum(producer.status().depth.values()) == 0
    assert out.startswith("11 found\n")
    assert account(out) == {
        "passed over, no pictures that mlxq reads": 1,
        "under way, and cancelled": 4,
        "not begun": 6,
    }
    assert "no worker is up" in error
    assert error.endswith("ended early: the same line goes on where this one stopped\n")
    assert "Traceback" not in error

    with AnsweringWorker(server.url, queue) as worker:
        again = start(server, queue, pictures)
        out, _ = again.communicate(timeout=WAIT)
    assert (again.returncode, len(worker.jobs)) == (0, 10)
    assert account(out) == {"captioned": 10, "passed over, no pictures that mlxq reads": 1}
    assert len(rows(pictures)) == len(set(rows(pictures))) == 10


@ENDS
def test_detached_jobs_go_on_and_are_fetched(server, queue, pictures, number, status):
    with Producer(server.url, queue) as producer:
        process = start(server, queue, pictures, "--detach")
        eventually(lambda: sum(producer.status().depth.values()) == 4)
        process.send_signal(number)
        out, _ = process.communicate(timeout=WAIT)
        assert process.returncode == status
        assert account(out)["under way, and going on"] == 4
        with AnsweringWorker(server.url, queue) as worker:
            eventually(lambda: len(worker.jobs) == 4)
            again = start(server, queue, pictures)
            out, _ = again.communicate(timeout=WAIT)
    assert (again.returncode, len(worker.jobs)) == (0, 10)
    assert account(out)["captioned"] == 10


@ENDS
def test_what_is_done_stays_done(server, queue, pictures, number, status):
    with AnsweringWorker(server.url, queue) as worker:
        worker.pause = 0.05
        process = start(server, queue, pictures)
        eventually(lambda: len(worker.jobs) >= 3)
        process.send_signal(number)
        out, _ = process.communicate(timeout=WAIT)
        assert process.returncode == status
        found = account(out)
        assert sum(found.values()) == 11
        assert found.get("captioned", 0) == len(rows(pictures))
        again = start(server, queue, pictures)
        out, _ = again.communicate(timeout=WAIT)
    assert again.returncode == 0
    assert account(out).get("done by an earlier run", 0) == found.get("captioned", 0)
    assert len(rows(pictures)) == len(set(rows(pictures))) == 10


def test_what_has_ended_meanwhile_is_kept_for_the_next_run(server, queue, pictures):
    """The run is frozen while a worker answers; what it then lets go has results already."""
    with Producer(server.url, queue) as producer:
        process = start(server, queue, pictures)
        eventually(lambda: sum(producer.status().depth.values()) == 4)
        process.send_signal(signal.SIGSTOP)
        with AnsweringWorker(server.url, queue) as worker:
            eventually(lambda: sum(producer.status().depth.values()) == 0)
            process.send_signal(signal.SIGINT)
            process.send_signal(signal.SIGCONT)
            process.communicate(timeout=WAIT)
            first = len(worker.jobs)
            again = start(server, queue, pictures)
            again.communicate(timeout=WAIT)
    assert (first, len(worker.jobs)) == (4, 10)
    assert len(rows(pictures)) == 10
