"""Failed lines done again, runs that stop early, and runs that are interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from batch_files import request, rows
from mlxq_producer import Producer
from mlxq_producer.batch import DetachedBatches
from mlxq_producer.cli import app
from mlxq_producer.errors import BatchFailing
from mlxq_schemas.errors import ConfigError
from worker_process import eventually

ENDS = pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["Ctrl-C", "TERM"]
)


def files(folder: Path) -> tuple[list[str], list[str]]:
    """The ids of the lines with answers, and of those with error rows."""
    both = (rows(folder / f"{name}.jsonl") for name in ("out", "err"))
    answered, failed = ([row["custom_id"] for row in found] for found in both)
    return sorted(answered), sorted(failed)


@pytest.fixture
def by_model(worker, monkeypatch):
    """The worker refuses jobs that name a model."""
    claim = worker.claim

    def picky():
        while (job := claim()).model is not None:
            worker.fail(job.id, "unknown_model", f"job {job.id} asks for model {job.model!r}")
        return job

    monkeypatch.setattr(worker, "claim", picky)


def test_failed_lines_move_to_the_answers(request_answers, write_lines, batch_run, tmp_path):
    lines = [request("a"), request("b", "fail 1"), request("c", n=2), request("d", "fail 2")]
    write_lines(lines)
    with request_answers() as first:
        assert batch_run().run().request_counts.failed == 3
        again = batch_run(retry_failed=True).run()
    # What cannot be done is asked of nobody; what failed is asked again, under another id.
    assert sorted(first.texts) == ["fail 1", "fail 1", "fail 2", "fail 2", "hello"]
    assert files(tmp_path) == (["a"], ["b", "c", "d"])
    counts = again.request_counts
    assert (again.status, counts.total, counts.completed, counts.failed) == ("completed", 4, 1, 3)


def test_another_model_for_the_failed_lines(by_model, answering, write_lines, batch_run, tmp_path):
    write_lines([request("a", model="gpt-4o"), request("b"), request("c", model="gpt-4o-mini")])
    batch_run().run()
    assert files(tmp_path) == (["b"], ["a", "c"])
    [error, _] = rows(tmp_path / "err.jsonl")
    assert error["error"]["code"] == "unknown_model"
    assert error["error"]["message"].endswith("; `--model any` takes what the workers serve")
    with pytest.raises(ConfigError, match=r"began without --model, .* with --model any"):
        batch_run(model="any").run()
    batch = batch_run(model="any", retry_failed=True).run()
    assert files(tmp_path) == (["a", "b", "c"], [])
    assert (batch.request_counts.completed, batch.request_counts.failed) == (3, 0)
    # The batch is one on the new terms now.
    assert batch_run(model="any").run().id == batch.id
    with pytest.raises(ConfigError, match="began with --model any, and is to go on without"):
        batch_run().run()


def test_a_kill_between_the_two_runs_loses_no_line(
    request_answers, write_lines, batch_run, tmp_path, monkeypatch
):
    write_lines([request("a"), *(request(f"f{n}", "fail") for n in range(5))])
    with request_answers():
        batch_run().run()
        monkeypatch.setattr("mlxq_producer.batch.running._Loop.run", lambda _: os.abort_here())
        with pytest.raises(AttributeError):
            batch_run(retry_failed=True).run()
        monkeypatch.undo()
        assert files(tmp_path) == (["a"], [])
        batch = batch_run().run()
    assert files(tmp_path) == (["a"], [f"f{n}" for n in range(5)])
    assert batch.request_counts.failed == 5


def test_a_cancelled_batch_is_taken_up_again(
    request_answers, write_lines, batch_run, redis_client, queue, tmp_path
):
    write_lines([request("a"), request("b")])
    batches = DetachedBatches(redis_client, queue)

    def cancel(batch):
        if not batch.ended:
            batches.cancel(batch.id)

    assert batch_run().run(cancel).status == "cancelled"
    assert files(tmp_path) == ([], ["a", "b"])
    with request_answers():
        again = batch_run(retry_failed=True).run()
    assert (again.status, again.cancelled_at) == ("completed", None)
    assert files(tmp_path) == (["a", "b"], [])


def test_a_run_whose_first_lines_all_fail_alike_ends(
    by_model, answering, write_lines, batch_run, tmp_path, redis_client, queue
):
    write_lines([request(str(n), model="gpt-4o") for n in range(200)])
    with pytest.raises(BatchFailing, match=r"first 2\d lines .* unknown_model \(.*any"):
        batch_run(window=4).run()
    answered, failed = files(tmp_path)
    assert answered == []
    assert 20 <= len(failed) < 40
    eventually(lambda: sum(Producer(client=redis_client, queue=queue).status().depth.values()) == 0)
    batch = batch_run(window=4, retry_failed=True, model="any").run()
    assert (batch.request_counts.completed, batch.request_counts.failed) == (200, 0)


def test_keep_going_and_what_is_not_alike(answering, write_lines, batch_run, tmp_path):
    write_lines([request(str(n), "fail") for n in range(60)])
    assert batch_run(keep_going=True).run().request_counts.failed == 60
    for name in ("out.jsonl", "err.jsonl", "out.jsonl.batch"):
        (tmp_path / name).unlink()
    write_lines([request("good"), *(request(str(n), "fail") for n in range(60))])
    assert batch_run(window=1).run().request_counts.failed == 60


def test_the_command_groups_reasons_and_says_how_to_go_on(
    answering, write_lines, tmp_path, server, queue
):
    write_lines([request("a"), *(request(f"f{n}", "fail") for n in range(3)), "{oops"])
    words = ["batch", "run", "in.jsonl", "-o", "out.jsonl", "--redis-url", server.url, "-q", queue]
    os.chdir(tmp_path)
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 3
    assert "completed: 1 of 5 done, 4 failed (out.errors.jsonl)\n" in done.stdout
    assert "  3 generation_failed (line 2 ...)" in done.stdout
    assert "  1 invalid_json_line (line 5)\n" in done.stdout
    assert "the same line with --retry-failed does the failed ones again\n" in done.stderr
    stopped = CliRunner().invoke(app, [*words, "--json"])
    assert json.loads(stopped.stdout)["request_counts"]["failed"] == 4


def start(folder: Path, server, queue, *words: str) -> subprocess.Popen[str]:
    line = ("batch", "run", "in.jsonl", "-o", "out.jsonl", "--errors", "err.jsonl", "--window", "4")
    where = ("--redis-url", server.url, "--queue", queue)
    command = [sys.executable, "-m", "mlxq_producer", *line, *where, *words]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, stdout=pipe, stderr=pipe, text=True)


@ENDS
@pytest.mark.parametrize("detach", [False, True])
def test_an_interrupted_run_goes_on(
    request_answers, write_lines, redis_client, queue, server, tmp_path, number, status, detach
):
    write_lines([request(str(n), f"text {n}") for n in range(10)])
    producer = Producer(client=redis_client, queue=queue)
    words = ["--detach"] if detach else []
    process = start(tmp_path, server, queue, *words)
    eventually(lambda: sum(producer.status().depth.values()) == 4)
    process.send_signal(number)
    out, error = process.communicate(timeout=120)
    assert process.returncode == status
    assert "in_progress: 0 of 10 done" in out
    assert error.endswith("ended early: the same line goes on where this one stopped\n")
    assert "Traceback" not in error
    assert sum(producer.status().depth.values()) == (4 if detach else 0)
    with request_answers() as answers:
        again = start(tmp_path, server, queue)
        out, error = again.communicate(timeout=120)
    assert (again.returncode, len(answers.texts)) == (0, 10), error
    assert files(tmp_path) == ([str(n) for n in range(10)], [])
