"""The functions for RQ as an ordinary worker runs them, and what of RQ we build on."""

from __future__ import annotations

import inspect
from importlib.metadata import requires, version

import pytest
import rq
import rq.command
import rq.executions
import rq.worker.base
from PIL import Image
from rq import Queue
from rq.job import Job

from mlxq_producer import tasks
from mlxq_schemas import Keys
from mlxq_schemas.errors import ConfigError
from mlxq_schemas.wire import decode_job
from worker_process import eventually


def test_rq_enqueue_submits_and_has_the_id_at_once(
    rq, rq_queue: Queue, rq_client, redis_client, queue
):
    feed = rq(
        "enqueue", "--queue", "pictures", "mlxq_producer.tasks.submit", "hello", "max_tokens:=7"
    )
    assert feed.process.wait(60) == 0, feed.log
    [job_id] = rq_queue.get_job_ids()
    worker = rq("worker", "--burst", "-w", "rq.worker.SpawnWorker", "pictures")
    assert worker.process.wait(60) == 0, worker.log
    assert Job.fetch(job_id, rq_client, "json").return_value() == job_id, worker.log
    spec = decode_job(redis_client.hget(Keys(queue).job(job_id), "spec"), job_id)
    assert (spec.prompt, spec.sampling.max_tokens) == ("hello", 7)


def test_a_folder_is_submitted_once(server, queue, redis_client, monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("MLXQ_REDIS_URL", server.url)
    monkeypatch.setenv("MLXQ_QUEUE", queue)
    for number in range(3):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / f"{number}.png")
    (tmp_path / "notes.txt").write_text("no picture")
    (tmp_path / "1.txt").write_text("a caption")
    (tmp_path / "._1.png").write_text("hidden")
    (tmp_path / "2.heic").write_text("not read")
    assert tasks.submit_folder(str(tmp_path)) == 3
    assert "1 .heic, 1 .txt" in caplog.text
    assert tasks.submit_folder(str(tmp_path)) == 3
    assert redis_client.xlen(Keys(queue).jobs()) == 3
    assert tasks.submit_folder(str(tmp_path), fields={"max_tokens": 9}) == 3
    assert redis_client.xlen(Keys(queue).jobs()) == 6
    with pytest.raises(ConfigError, match="no folder"):
        tasks.submit_folder(str(tmp_path / "nowhere"))


def test_without_rq_the_id_is_new(server, queue, monkeypatch):
    monkeypatch.setenv("MLXQ_REDIS_URL", server.url)
    monkeypatch.setenv("MLXQ_QUEUE", queue)
    assert tasks.submit("x") != tasks.submit("x")
    assert tasks.submit("x", id="a") == tasks.submit("x", id="a") == "a"


def test_rq_is_pinned_and_has_every_name_that_we_use(rq_client):
    assert "rq<4,>=3; extra == 'rq'" in [
        line.replace('"', "'") for line in requires("mlxq") or [] if line.startswith("rq")
    ]
    assert version("rq").split(".")[0] == "3"
    base = rq.worker.base.BaseWorker
    used = {
        base.handle_job_success: ["job", "queue", "started_job_registry", "execution"],
        base.handle_job_failure: [
            "job",
            "queue",
            "started_job_registry",
            "exc_string",
            "execution",
        ],
        base.handle_execution_ended: ["job", "queue", "heartbeat_ttl"],
        base.prepare_job_execution: ["job", "remove_from_intermediate_queue"],
        base.handle_payload: ["message"],
        base.request_stop: ["signum", "frame"],
        base.execute_job: ["job", "queue"],
        rq.executions.Execution.save: ["ttl", "pipeline"],
        rq.executions.Execution.fetch: ["id", "job_id", "connection"],
        rq.executions.ExecutionRegistry.add: ["execution", "ttl", "pipeline", "xx"],
        rq.registry.StartedJobRegistry.add_execution: ["execution", "pipeline", "ttl", "xx"],
        Queue.push_job_id: ["job_id", "pipeline", "at_front"],
        Job.fetch: ["id", "connection", "serializer"],
        Job.send_webhooks: ["status", "exc_string"],
    }
    for function, names in used.items():
        known = [name for name in inspect.signature(function).parameters if name != "self"]
        assert known == names, function
    for owner, names in {
        base: "set_state heartbeat handle_exception bootstrap teardown work death_penalty_class",
        Job: "key_for func_name args kwargs success_callback_timeout failure_callback_timeout "
        "stopped_callback_timeout started_job_registry get_status",
        Job("x", connection=rq_client): "timeout origin worker_name _result",
        Queue: "key intermediate_queue intermediate_queue_key started_job_registry",
        rq.executions.Execution: "key composite_key worker_executions_key",
        rq.timeouts: "TimerDeathPenalty",
        rq.callbacks: "execute_success_callback execute_failure_callback execute_stopped_callback",
        rq.exceptions: "DeserializationError NoSuchJobError StopRequested",
        rq.worker_registration: "get_keys",
        rq.command: "PUBSUB_CHANNEL_TEMPLATE parse_payload",
    }.items():
        for name in names.split():
            assert hasattr(owner, name), (owner, name)
    source = inspect.getsource(base)
    assert "return_value=self._result" in inspect.getsource(Job)
    assert "self._stopped_job_id == job.id" in source
    assert (
        base([], "w", connection=rq_client).pubsub_channel_name
        == rq.command.PUBSUB_CHANNEL_TEMPLATE % "w"
    )


CRON = """
from rq import cron
from mlxq_producer.tasks import submit_tick

options = {"name": "report", "schedule": "* * * * *", "prompt": "What is new?"}
cron.register(submit_tick, queue_name="ticks", kwargs=options, interval=1)
"""


def test_two_rq_crons_run_a_tick_once(
    rq, rq_url, rq_client, environment, redis_client, queue, tmp_path
):
    (tmp_path / "ticks.py").write_text(CRON)
    ticks = Queue("ticks", connection=rq_client)
    crons = [rq("cron", "--path", str(tmp_path), "ticks") for _ in range(2)]
    eventually(lambda: len(ticks) >= 4, crons[0].log)
    for running in crons:
        running.kill()
    calls = ticks.get_job_ids()
    worker = rq("worker", "-S", "pickle", "--burst", "-w", "rq.SimpleWorker", "ticks")
    assert worker.process.wait(60) == 0, worker.log
    values = [Job.fetch(call, rq_client).return_value() for call in calls]
    submitted = [job_id for ids in values for job_id in ids]
    # One tick, and a second one if a minute passed meanwhile.
    assert 1 <= len(submitted) == len(set(submitted)) <= 2, worker.log
    assert redis_client.xlen(Keys(queue).jobs()) == len(submitted)
    assert all(job_id.startswith("report-") for job_id in submitted)
