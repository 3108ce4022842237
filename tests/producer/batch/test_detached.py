"""``mlxq batch submit|status|cancel|fetch``: the state of a batch is with the queue."""

from __future__ import annotations

import time

import pytest
from openai.types import Batch as OpenAIBatch
from openai.types.chat import ChatCompletion
from typer.testing import CliRunner

from batch_files import request, rows
from mlxq_producer.batch import DetachedBatches, detached, lines
from mlxq_producer.batch.queue_side import ask_to_cancel, save_batch
from mlxq_producer.batch.record import new_batch
from mlxq_producer.batch.sending import send
from mlxq_producer.cli import app
from mlxq_producer.sync_runner import Runner
from mlxq_schemas import Keys
from mlxq_schemas.errors import ConfigError, UnknownJob, WaitTimeout
from worker_process import eventually


@pytest.fixture
def batches(redis_client, queue) -> DetachedBatches:
    return DetachedBatches(redis_client, queue)


def counts(batch) -> tuple[int, int, int]:
    found = batch.request_counts
    return found.total, found.completed, found.failed


def test_a_batch_is_sent_answered_and_fetched(
    batches, worker, write_lines, tmp_path, redis_client, queue, request_answers
):
    asked = [request("a", "first", logprobs=True), "{oops", request("b", "fail"), request("c")]
    sent = batches.submit(write_lines(asked), 3600)
    assert (sent.status, counts(sent)) == ("in_progress", (4, 0, 1))
    out, err = tmp_path / "out.jsonl", tmp_path / "err.jsonl"
    with pytest.raises(WaitTimeout, match="3 lines are open"):
        batches.fetch(sent.id, out, err)
    assert not out.exists()
    with request_answers():
        eventually(lambda: batches.status(sent.id).ended)
    batch = batches.fetch(sent.id, out, err)
    assert (batch.status, counts(batch)) == ("completed", (4, 2, 2))
    assert OpenAIBatch.model_validate_json(batch.model_dump_json(exclude_none=True), strict=True)
    found = {row["custom_id"]: row["response"]["body"] for row in rows(out)}
    chat = ChatCompletion.model_validate(found["a"], strict=True)
    assert chat.choices[0].message.content == "first"
    assert chat.choices[0].logprobs is not None
    assert found.keys() == {"a", "c"}
    codes = {row["custom_id"]: row["error"]["code"] for row in rows(err)}
    assert codes == {None: "invalid_json_line", "b": "generation_failed"}
    assert 0 < redis_client.ttl(Keys(queue).batch_lines(sent.id)) <= 3600 + 7 * 86400
    with pytest.raises(ConfigError, match="there already"):
        batches.fetch(sent.id, out, err)


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_a_submission_that_broke_off_goes_on(
    batches, write_lines, redis_client, queue, monkeypatch, kept
):
    monkeypatch.setattr(lines, "CHUNK", 4)
    source = write_lines([request(str(i)) for i in range(10)])
    keys, ids, stop = Keys(queue), [], iter(range(kept))
    add_lines = detached.add_lines

    def broken(*args):
        if next(stop, None) is None:
            raise KeyboardInterrupt
        return add_lines(*args)

    with monkeypatch.context() as patch:
        patch.setattr(detached, "add_lines", broken)
        with pytest.raises(KeyboardInterrupt):
            batches.submit(source, 3600, report=lambda batch: ids.append(batch.id))
    assert redis_client.xlen(keys.batch_lines(ids[0])) == 4 * kept
    assert batches.status(ids[0]).status == "validating"
    with pytest.raises(ConfigError, match="priority normal"):
        batches.submit(source, 3600, batch_id=ids[0], priority="low")
    sent = batches.submit(source, 3600, batch_id=ids[0])
    assert (sent.id, counts(sent)) == (ids[0], (10, 0, 0))
    assert redis_client.xlen(keys.batch_lines(ids[0])) == 10
    assert redis_client.xlen(keys.jobs()) == 10
    with pytest.raises(ConfigError, match="has all its lines"):
        batches.submit(source, 3600, batch_id=ids[0])


def test_cancel_ends_what_waits(batches, worker, write_lines, tmp_path, redis_client, queue):
    sent = batches.submit(write_lines([request("a"), request("b")]), 3600)
    job = worker.claim()
    worker.finish(job.id, "text")
    batch = batches.cancel(sent.id)
    assert (batch.status, counts(batch)) == ("cancelled", (2, 1, 1))
    assert batch.cancelling_at is not None
    batches.fetch(sent.id, tmp_path / "out.jsonl", tmp_path / "err.jsonl")
    [row] = rows(tmp_path / "err.jsonl")
    assert (row["custom_id"], row["error"]["code"]) == ("b", "batch_cancelled")
    assert redis_client.xlen(Keys(queue).jobs()) == 0
    assert batches.cancel(sent.id) == batch


def test_a_submission_that_broke_off_can_be_cancelled(
    batches, write_lines, redis_client, queue, monkeypatch
):
    monkeypatch.setattr(lines, "CHUNK", 4)
    ids: list[str] = []

    def broken(*args):
        if redis_client.xlen(Keys(queue).jobs()) > 4:
            raise KeyboardInterrupt
        return send(*args)

    monkeypatch.setattr(detached, "send", broken)
    source = write_lines([request(str(i)) for i in range(12)])
    with pytest.raises(KeyboardInterrupt):
        batches.submit(source, 3600, report=lambda batch: ids.append(batch.id))
    batch = batches.cancel(ids[0])
    assert (batch.status, counts(batch)) == ("cancelled", (8, 0, 8))
    assert redis_client.xlen(Keys(queue).jobs()) == 0


def test_a_submission_that_is_cancelled_stops(
    batches, write_lines, redis_client, queue, monkeypatch
):
    monkeypatch.setattr(lines, "CHUNK", 4)

    def cancel(batch):
        Runner(redis_client).run(ask_to_cancel(Keys(queue), batch))

    batch = batches.submit(write_lines([request(str(i)) for i in range(10)]), 3600, report=cancel)
    assert (batch.status, counts(batch)) == ("cancelled", (4, 0, 4))


def test_lines_expire_though_no_worker_lives(batches, write_lines, tmp_path, monkeypatch):
    monkeypatch.setattr(detached, "GRACE_SECONDS", 0.0)
    sent = batches.submit(write_lines([request("a")]), 1)
    eventually(lambda: batches.status(sent.id).ended)
    batch = batches.fetch(sent.id, tmp_path / "out.jsonl", tmp_path / "err.jsonl")
    assert batch.status == "expired"
    [row] = rows(tmp_path / "err.jsonl")
    assert row["error"]["code"] == "batch_expired"


def test_results_that_are_gone_are_errors(
    batches, worker, write_lines, tmp_path, redis_client, queue
):
    sent = batches.submit(write_lines([request("a")]), 3600)
    job = worker.claim()
    worker.finish(job.id, "text")
    assert batches.status(sent.id).status == "completed"
    redis_client.delete(Keys(queue).result(job.id))
    batch = batches.fetch(sent.id, tmp_path / "out.jsonl", tmp_path / "err.jsonl")
    assert counts(batch) == (1, 0, 1)
    [row] = rows(tmp_path / "err.jsonl")
    assert row["error"]["code"] == "expired"


def test_ids_that_nobody_knows_and_files_of_runs(
    batches, write_lines, tmp_path, redis_client, queue
):
    with pytest.raises(UnknownJob, match="no batch batch_1"):
        batches.status("batch_1")
    run = new_batch(write_lines([request("a")]), 60, None, "normal", time.time())
    run.output_file_id = "rows.jsonl"
    run.move("completed")
    Runner(redis_client).run(save_batch(Keys(queue), run))
    assert batches.status(run.id).ended
    with pytest.raises(ConfigError, match=r"rows\.jsonl"):
        batches.fetch(run.id, tmp_path / "out.jsonl", tmp_path / "err.jsonl")


def test_the_commands(write_lines, tmp_path, server, queue, monkeypatch, request_answers):
    monkeypatch.setenv("MLXQ_REDIS_URL", server.url)
    monkeypatch.setenv("MLXQ_QUEUE", queue)

    def mlxq(*arguments):
        return CliRunner().invoke(app, ["batch", *arguments])

    source = str(write_lines([request("a"), "{"]))
    batch_id = mlxq("submit", source).stdout.strip()
    assert mlxq("status", batch_id).stdout == f"{batch_id} in_progress: 0 of 2 done, 1 failed\n"
    out = str(tmp_path / "out.jsonl")
    assert mlxq("fetch", batch_id, "-o", out).exit_code == 5
    with request_answers():
        assert mlxq("fetch", batch_id, "-o", out, "--wait", "60").exit_code == 3
    assert len(rows(tmp_path / "out.jsonl")) == len(rows(tmp_path / "out.errors.jsonl")) == 1
    assert " cancelled: 0 of 2 done" in mlxq("cancel", mlxq("submit", source).stdout.strip()).stdout
    assert mlxq("status", "none").exit_code == 1
