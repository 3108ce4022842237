"""``mlxq batch run``: each line has one row, whatever happens on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace

import pytest
from openai.types import Batch as OpenAIBatch
from openai.types import Completion
from openai.types.chat import ChatCompletion
from typer.testing import CliRunner

from batch_files import Answering, request, rows
from mlxq_producer.batch import DetachedBatches
from mlxq_producer.cli import app
from mlxq_schemas import Keys
from mlxq_schemas.errors import ConfigError
from worker_process import eventually


def counts(batch) -> tuple[int, int, int]:
    found = batch.request_counts
    return found.total, found.completed, found.failed


def test_good_lines_have_responses_and_bad_ones_errors(answering, write_lines, batch_run, tmp_path):
    completion = {**request("c"), "url": "/v1/completions"}
    completion["body"] = {"prompt": "Once", "logprobs": 1}
    write_lines(
        [
            request("a", "first"),
            "{oops",
            request("b", "ü \U0001f600", logprobs=True, top_logprobs=2),
            "",
            request("a", "again"),
            request("d", "fail"),
            request("e", n=2),
            completion,
        ]
    )
    batch = batch_run().run()
    assert (batch.status, counts(batch)) == ("completed", (7, 3, 4))
    found = {row["custom_id"]: row for row in rows(tmp_path / "out.jsonl")}
    assert found.keys() == {"a", "b", "c"}
    assert all(row["error"] is None for row in found.values())
    assert all(row["response"]["status_code"] == 200 for row in found.values())
    chat = ChatCompletion.model_validate(found["b"]["response"]["body"], strict=True)
    assert chat.choices[0].message.content == "ü \U0001f600"
    assert chat.choices[0].finish_reason == "stop"
    assert chat.usage is not None
    assert chat.usage.total_tokens == chat.usage.prompt_tokens + chat.usage.completion_tokens
    assert chat.choices[0].logprobs is not None
    [token] = chat.choices[0].logprobs.content or []
    assert (token.token, token.logprob) == ("token_id:7", -0.5)
    assert [one.token for one in token.top_logprobs] == ["token_id:7", "token_id:9"]
    text = Completion.model_validate(found["c"]["response"]["body"], strict=True)
    assert text.choices[0].text == "Once"
    assert text.choices[0].logprobs is not None
    assert text.choices[0].logprobs.token_logprobs == [-0.5]
    errors = {row["id"].rpartition("_")[2]: row for row in rows(tmp_path / "err.jsonl")}
    assert {line: row["error"]["code"] for line, row in errors.items()} == {
        "2": "invalid_json_line",
        "5": "duplicate_custom_id",
        "6": "generation_failed",
        "7": "unsupported",
    }
    assert errors["6"]["error"]["message"] == "not a number"
    assert all(row["response"] is None for row in errors.values())


def test_the_batch_object_is_openais(answering, write_lines, batch_run, tmp_path):
    write_lines([request("a"), request("b", "fail")])
    batch = batch_run(completion_window=7200).run()
    found = OpenAIBatch.model_validate_json((tmp_path / "out.jsonl.batch").read_text(), strict=True)
    assert (found.id, found.status, found.completion_window) == (batch.id, "completed", "2h")
    assert found.expires_at == found.created_at + 7200
    assert found.request_counts is not None
    assert found.request_counts.model_dump() == {"total": 2, "completed": 1, "failed": 1}


def test_a_small_window_holds_few_jobs(answering, write_lines, batch_run, redis_client, queue):
    write_lines([request(str(i)) for i in range(40)])
    depths: list[int] = []
    run = batch_run(window=3)
    batch = run.run(lambda _: depths.append(redis_client.xlen(Keys(queue).jobs())))
    assert counts(batch) == (40, 40, 0)
    assert max(depths) <= 3


def test_written_jobs_are_not_kept_for_long(answering, write_lines, batch_run, redis_client, queue):
    write_lines([request("a")])
    batch = batch_run().run()
    keys = Keys(queue)
    [job] = redis_client.scan_iter(keys.job("*"))
    assert 0 < redis_client.ttl(job) <= 600
    assert redis_client.ttl(keys.batch(batch.id)) > 0


def test_lines_whose_pictures_had_gone_are_sent_again_once(
    worker, write_lines, batch_run, redis_client, queue, tmp_path
):
    lines = []
    for name in ("again", "lost"):
        (tmp_path / f"{name}.png").write_bytes(name.encode())
        picture = {"type": "image_url", "image_url": {"url": f"{name}.png"}}
        content = [picture, {"type": "text", "text": name}]
        lines.append(request(name, messages=[{"role": "user", "content": content}]))
    write_lines([*lines, request("plain", "fail")])
    run = threading.Thread(target=batch_run().run)
    run.start()
    seen: dict[str, int] = {}
    while len(seen) < 3 or sum(seen.values()) < 5:
        eventually(lambda: redis_client.xlen(Keys(queue).jobs()), "a job")
        job = worker.claim()
        text = job.chat()[-1].parts()[-1].text
        seen[text] = seen.get(text, 0) + 1
        blobs = [Keys(queue).blob(ref.url.removeprefix("blob:")) for _, ref in job.media()]
        if text == "fail":
            worker.fail(job.id, "media_not_found", "no file of the producer's")
        elif seen[text] == 1 or text == "lost":
            redis_client.delete(*blobs)
            worker.fail(job.id, "media_not_found", "its blob is gone")
        else:
            assert redis_client.exists(*blobs) == 1
            worker.finish(job.id, "seen")
    run.join(30)
    assert not run.is_alive()
    assert seen == {"again": 2, "lost": 2, "fail": 1}
    assert [row["custom_id"] for row in rows(tmp_path / "out.jsonl")] == ["again"]
    errors = {row["custom_id"]: row["error"]["code"] for row in rows(tmp_path / "err.jsonl")}
    assert errors == {"lost": "media_not_found", "plain": "media_not_found"}


def test_running_again_after_the_end_does_nothing(answering, write_lines, batch_run, tmp_path):
    write_lines([request("a"), request("b", "fail")])
    first = batch_run().run()
    assert batch_run().run() == first
    assert answering.texts == ["hello", "fail"]
    assert len(rows(tmp_path / "out.jsonl")) == 1


@pytest.mark.parametrize("torn", [b"", b'{"id": "batch_req'])
def test_a_run_goes_on_where_its_files_end(answering, write_lines, batch_run, tmp_path, torn):
    write_lines([request(str(i), f"text {i}") for i in range(20)] + ["{oops"])
    batch_run().run()
    out, state = tmp_path / "out.jsonl", tmp_path / "out.jsonl.batch"
    whole = out.read_bytes().splitlines(keepends=True)
    out.write_bytes(b"".join(whole[:8]) + torn)
    state.write_text(state.read_text().replace('"completed",', '"in_progress",'))
    batch = batch_run().run()
    assert (batch.status, counts(batch)) == ("completed", (21, 20, 1))
    assert sorted(out.read_bytes().splitlines(keepends=True)) == sorted(whole)
    assert len(answering.texts) == 20  # the queue takes each job once


def test_a_killed_run_is_finished_by_the_next(
    worker, write_lines, batch_run, tmp_path, server, queue
):
    write_lines([request(str(i), f"text {i}") for i in range(300)])
    path = os.pathsep.join(entry for entry in sys.path if entry)
    environment = {**os.environ, "PYTHONPATH": path, "MLXQ_REDIS_URL": server.url}
    arguments = ["run", "in.jsonl", "-o", "out.jsonl", "--errors", "err.jsonl", "--window", "20"]
    command = [sys.executable, "-m", "mlxq_producer", "batch", *arguments, "-q", queue]
    out = tmp_path / "out.jsonl"
    with Answering(worker) as answering:
        with subprocess.Popen(command, cwd=tmp_path, env=environment) as process:
            eventually(lambda: out.exists() and out.read_bytes().count(b"\n") > 20, "20 rows")
            os.kill(process.pid, signal.SIGKILL)
        assert out.read_bytes().count(b"\n") < 300
        batch = batch_run(window=20).run()
    assert counts(batch) == (300, 300, 0)
    texts = {
        row["custom_id"]: row["response"]["body"]["choices"][0]["message"]["content"]
        for row in rows(out)
    }
    assert texts == {str(i): f"text {i}" for i in range(300)}
    assert sorted(answering.texts) == sorted(f"text {i}" for i in range(300))


def test_lines_that_are_not_done_in_time_expire(
    write_lines, batch_run, tmp_path, redis_client, queue
):
    write_lines([request(str(i)) for i in range(5)] + ["{oops"])
    batch = batch_run(completion_window=1, window=2).run()
    assert (batch.status, counts(batch)) == ("expired", (6, 0, 6))
    codes = [row["error"]["code"] for row in rows(tmp_path / "err.jsonl")]
    assert sorted(codes) == ["batch_expired"] * 5 + ["invalid_json_line"]
    assert redis_client.xlen(Keys(queue).jobs()) == 0


def test_a_batch_can_be_cancelled_from_elsewhere(
    write_lines, batch_run, tmp_path, redis_client, queue
):
    write_lines([request(str(i)) for i in range(5)])
    asked = threading.Event()

    def cancel(batch):
        if not asked.is_set():
            DetachedBatches(redis_client, queue).cancel(batch.id)
            asked.set()

    batch = batch_run(window=2).run(cancel)
    assert (batch.status, counts(batch)) == ("cancelled", (5, 0, 5))
    assert {row["error"]["code"] for row in rows(tmp_path / "err.jsonl")} == {"batch_cancelled"}
    assert redis_client.xlen(Keys(queue).jobs()) == 0
    assert batch.cancelling_at is not None


def test_files_that_are_not_of_this_batch_are_left_alone(
    answering, write_lines, batch_run, tmp_path
):
    write_lines([request("a")])
    (tmp_path / "out.jsonl").write_text("precious\n")
    with pytest.raises(ConfigError, match=r"out\.jsonl"):
        batch_run().run()
    assert (tmp_path / "out.jsonl").read_text() == "precious\n"
    (tmp_path / "out.jsonl").unlink()
    batch_run().run()
    write_lines([request("b")])
    with pytest.raises(ConfigError, match="another input"):
        batch_run().run()


def test_a_run_goes_on_as_it_began(answering, write_lines, batch_run, tmp_path):
    write_lines([request("a")])
    batch_run(model="any").run()
    with pytest.raises(ConfigError, match="model any"):
        batch_run().run()
    with pytest.raises(ConfigError, match=r"none\.jsonl"):
        replace(batch_run(), source=tmp_path / "none.jsonl", output=tmp_path / "x.jsonl").run()
    assert not (tmp_path / "x.jsonl").exists()


def test_two_runs_do_not_share_an_output(answering, write_lines, batch_run):
    write_lines([request("a")])
    seen: list[ConfigError] = []

    def second(batch):
        if not seen:
            with pytest.raises(ConfigError, match="another run") as caught:
                batch_run().run()
            seen.append(caught.value)

    assert counts(batch_run().run(second)) == (1, 1, 0)
    assert seen


def test_the_command(answering, write_lines, tmp_path, server, queue, monkeypatch):
    monkeypatch.setenv("MLXQ_REDIS_URL", server.url)
    monkeypatch.setenv("MLXQ_QUEUE", queue)
    source, out = str(write_lines([request("a")])), tmp_path / "out.jsonl"
    done = CliRunner().invoke(app, ["batch", "run", source, "-o", str(out)])
    assert (done.exit_code, len(rows(out))) == (0, 1)
    assert " completed: 1 of 1 done\n" in done.stdout
    source = str(write_lines([request("a"), "{"]))
    arguments = ["batch", "run", source, "-o", str(tmp_path / "two.jsonl"), "--json"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 3
    assert json.loads(done.stdout)["request_counts"] == {"total": 2, "completed": 1, "failed": 1}
    assert len(rows(tmp_path / "two.errors.jsonl")) == 1
    done = CliRunner().invoke(app, ["batch", "run", source, "-o", source])
    assert (done.exit_code, "three files" in done.stderr) == (2, True)
