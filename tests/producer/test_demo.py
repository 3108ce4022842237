"""The demo as a real process, with a worker that knows the answers in the model's place."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import redis

from mlxq_producer.cli.demo_report import Row, summarise
from mlxq_producer.samples import sample_jobs
from mlxq_schemas import Failed, Finished, Queued, Retrying, Started, Token, Usage

STAND_IN = Path(__file__).parent / "stand_in"


@pytest.fixture
def environment(tmp_path) -> dict[str, str]:
    """Environment of a demo whose temporary files go to the test's folder."""
    path = os.pathsep.join([str(STAND_IN), *(entry for entry in sys.path if entry)])
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MLXQ_")}
    return {**kept, "PYTHONPATH": path, "TMPDIR": str(tmp_path)}


def demo(*args: str) -> list[str]:
    return [sys.executable, "-W", "error", "-m", "mlxq_producer", "demo", *args]


def run(environment: dict[str, str], *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        demo(*args), env=environment, capture_output=True, text=True, timeout=90, check=False
    )


def demo_keys(url: str) -> list[bytes]:
    with redis.Redis.from_url(url) as client:
        return list(client.scan_iter("mlxq:{demo-*"))


def test_the_demo_as_data(environment, tmp_path):
    done = run(environment, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    samples = sample_jobs()
    assert [job["name"] for job in report["jobs"]] == [sample.name for sample in samples]
    assert [job["text"] or None for job in report["jobs"]] == [one.expect for one in samples]
    assert all(job["right"] for job in report["jobs"])
    summary = report["summary"]
    assert summary["right"] == summary["expected"] >= 23
    assert summary["failed"] == summary["expected_failures"] == 1
    assert summary["tokens_per_s"] > 0
    assert summary["median_ttft_s"] >= 0
    assert list(tmp_path.iterdir()) == []


def test_the_demo_for_people(environment):
    done = run(environment)
    assert (done.returncode, done.stderr) == (0, "starting a server and a worker\n")
    samples = sample_jobs()
    for sample in samples:
        assert f"ok    {sample.name}: {sample.expect or 'media_invalid: '}" in done.stdout
    right = len(samples) - 1
    assert f"{right} of {right} captions right; 1 of 1 broken pictures refused" in done.stdout


def test_wrong_captions_fail_the_demo(environment):
    done = run({**environment, "STAND_IN": "wrong"})
    assert done.returncode == 1
    assert "error[demo]: " in done.stderr
    assert "got 'no idea'" in done.stderr
    assert "should have failed" in done.stderr


def test_a_worker_that_dies_fails_the_demo_with_its_log(environment, tmp_path):
    done = run({**environment, "STAND_IN": "crash"})
    assert done.returncode == 1
    assert "the worker ended with status 1" in done.stderr
    assert "the stand-in gives up" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_demo_that_takes_too_long_gives_up(environment):
    done = run({**environment, "STAND_IN": "deaf"}, "--timeout", "2", "--json")
    assert done.returncode == 5
    assert json.loads(done.stdout)["error"]["code"] == "wait_timeout"


def test_a_server_that_is_given_is_used_and_left_clean(environment, server):
    done = run({**environment, "MLXQ_REDIS_URL": server.url}, "--json")
    assert done.returncode == 0
    assert demo_keys(server.url) == []


def test_a_server_that_does_not_answer_is_named(environment):
    done = run({**environment, "MLXQ_REDIS_URL": "redis://127.0.0.1:1/0"})
    assert done.returncode != 0
    assert "127.0.0.1:1" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)]
)
def test_a_demo_that_is_stopped_leaves_no_process(environment, server, tmp_path, number, status):
    environment |= {"STAND_IN": "deaf", "MLXQ_REDIS_URL": server.url}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(demo(), env=environment, **pipes) as process:
        until(lambda: any(b":job:" in key for key in demo_keys(server.url)))
        process.send_signal(number)
        _, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (status, b"starting a server and a worker\n")
    until(lambda: not processes_with(str(tmp_path)))
    if number != signal.SIGKILL:
        assert list(tmp_path.iterdir()) == []
        assert demo_keys(server.url) == []
    else:
        with redis.Redis.from_url(server.url) as client:
            client.delete(*demo_keys(server.url))


def processes_with(text: str) -> list[str]:
    """Processes whose environment holds ``text``: the demo's children."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if path.parent.name != str(os.getpid()) and text.encode() in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            continue
    return found


def until(condition: Any) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def row(expect: str | None = "a red circle") -> Row:
    return Row("name", "prompt", [], expect, id="a")


def test_a_row_grows_by_events():
    one = row()
    for event in (
        Queued(job="a", t=10.0),
        Started(job="a", t=11.0),
        Token(job="a", text="wrong", t=12.0),
        Retrying(job="a", code="x", message="", restart=True, t=13.0),
        Token(job="a", text="a red", t=14.0),
    ):
        one.apply(event)
    assert (one.state, one.text, one.ttft, one.right) == ("running", "a red", 2.0, False)
    usage = Usage(completion_tokens=4)
    one.apply(Finished(job="a", reason="stop", text="a red circle", usage=usage, t=15.0))
    assert (one.state, one.tokens, one.right) == ("finished", 4, True)
    summary = summarise([one])
    assert (summary.ok, summary.tokens_per_s, summary.seconds) == (True, 1.0, 4.0)


def test_only_the_jobs_that_should_fail_may_fail():
    good, bad = row(), row(None)
    for one in (good, bad):
        one.apply(Failed(job="a", code="media_invalid", message="no good", t=1.0))
    assert (good.right, bad.right) == (False, True)
    summary = summarise([good, bad])
    assert (summary.right, summary.failed, summary.expected_failures) == (0, 2, 1)
    assert summary.reason == "name: failed (media_invalid: no good)"
    assert not summary.ok
