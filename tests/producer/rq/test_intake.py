"""RQ jobs that wait for mlxq jobs: real ``rq worker`` processes, a real mlxq worker."""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import suppress

import pytest
from redis.exceptions import ResponseError
from rq import Callback, Queue, Retry
from rq.command import send_stop_job_command
from rq.exceptions import InvalidJobOperation
from rq.job import Job, JobStatus
from rq.results import Result as RqResult

from mlxq_producer import tasks
from mlxq_producer.rq import Intake
from mlxq_producer.rq.records import run_id
from mlxq_schemas import Keys
from mlxq_schemas.wire import decode_job
from worker_process import WorkerProcess, eventually

pytestmark = pytest.mark.usefixtures("rq_client")


def ended(jobs: list[Job], log) -> None:
    def all_ended() -> bool:
        return all(job.get_status() in (JobStatus.FINISHED, JobStatus.FAILED) for job in jobs)

    eventually(all_ended, f"end of {[(job.id, job.get_status()) for job in jobs]} {log.log}")


def in_flight(rq_client, queue: str, count: int) -> None:
    eventually(lambda: rq_client.hlen(Keys(queue).rq) == count, f"{count} in flight")


def open_runs(rq_client, queue: str) -> int:
    return rq_client.hlen(Keys(queue).rq)


def test_many_wait_on_one_intake_and_end_with_results_callbacks_and_dependents(
    rq_queue: Queue, rq_client, queue, intake, mlxq_worker, rq
):
    called = Callback("rq_functions.note")
    jobs = [
        rq_queue.enqueue(tasks.submit, f"text {i}", on_success=called, result_ttl=300)
        for i in range(30)
    ]
    loud = Queue("loud", connection=rq_client, serializer="json")
    dependent = loud.enqueue("rq_functions.shout", "then", depends_on=jobs[3])
    running = intake()
    in_flight(rq_client, queue, 30)
    eventually(lambda: len(rq_queue.started_job_registry.get_job_ids()) == 30)
    assert dependent.get_status() == JobStatus.DEFERRED
    mlxq_worker()
    ended(jobs, running)
    for i, job in enumerate(jobs):
        value = job.latest_result().return_value
        assert (value["type"], value["text"], value["job"]) == ("finished", f"text {i}", job.id)
        assert job.latest_result().type is RqResult.Type.SUCCESSFUL
        assert rq_client.llen(f"called:{job.id}") == 1
        assert 0 < rq_client.ttl(job.key) <= 300
    eventually(lambda: open_runs(rq_client, queue) == 0)
    assert rq_queue.started_job_registry.get_job_ids(cleanup=False) == []
    assert sorted(rq_queue.finished_job_registry.get_job_ids()) == sorted(j.id for j in jobs)
    assert rq("worker", "--burst", "-w", "rq.SimpleWorker", "loud").process.wait(60) == 0
    assert dependent.return_value(refresh=True) == "THEN"


def test_a_failed_job_is_retried_under_a_new_id_and_then_has_failed(
    rq_queue: Queue, rq_client, redis_client, queue, intake, mlxq_worker
):
    on_failure = Callback("rq_functions.note")
    jobs = [
        rq_queue.enqueue(
            tasks.submit, "x", model="another", retry=Retry(max=2), on_failure=on_failure
        )
        for _ in range(3)
    ]
    mlxq_worker()
    running = intake()
    ended(jobs, running)
    for job in jobs:
        assert job.get_status() == JobStatus.FAILED
        assert "JobNotFinished" in job.latest_result().exc_string
        assert "unknown_model" in job.latest_result().exc_string
        runs = [run_id(job.id, number) for number in (1, 2, 3, 4)]
        exist = [bool(redis_client.exists(Keys(queue).job(run))) for run in runs]
        assert exist == [True, True, True, False]
        assert rq_client.llen(f"called:{job.id}") == 3
    assert sorted(rq_queue.failed_job_registry.get_job_ids()) == sorted(j.id for j in jobs)


def test_stop_cancel_and_delete_reach_the_mlxq_job(
    rq_queue: Queue, rq_client, redis_client, queue, intake
):
    on_stopped = Callback("rq_functions.note")
    stopped, cancelled, deleted, other = (
        rq_queue.enqueue(tasks.submit, "x", on_stopped=on_stopped, retry=Retry(max=3))
        for _ in range(4)
    )
    running = intake()
    eventually(lambda: len(rq_queue.started_job_registry.get_job_ids()) == 4, running.log)
    eventually(lambda: redis_client.xlen(Keys(queue).jobs()) == 4)
    send_stop_job_command(rq_client, stopped.id, serializer="json")
    Job.fetch(cancelled.id, rq_client, "json").cancel()
    Job.fetch(deleted.id, rq_client, "json").delete()
    eventually(lambda: stopped.get_status() == JobStatus.STOPPED, running.log)
    eventually(lambda: open_runs(rq_client, queue) == 1, running.log)
    states = {
        job.id: redis_client.hget(Keys(queue).job(job.id), "state")
        for job in (stopped, cancelled, deleted, other)
    }
    assert list(states.values()) == [b"cancelled", b"cancelled", b"cancelled", b"queued"]
    assert rq_client.llen(f"called:{stopped.id}") == 1
    assert cancelled.get_status() == JobStatus.CANCELED
    assert not Job.exists(deleted.id, rq_client)
    assert other.get_status() == JobStatus.STARTED
    [worker] = Intake.all(rq_client, serializer="json")
    assert [execution.job_id for execution in worker.get_current_executions()] == [other.id]
    send_stop_job_command(rq_client, other.id, serializer="json")
    eventually(lambda: open_runs(rq_client, queue) == 0, running.log)


def test_nothing_is_lost_when_intake_and_worker_are_killed(
    rq_queue: Queue, rq_client, queue, intake, mlxq_worker
):
    jobs = [rq_queue.enqueue(tasks.submit, f"{i} " + "x" * 40) for i in range(60)]
    slow = ("--lease", "1", "--max-rows", "4")
    first, worker = intake(), mlxq_worker(*slow)
    eventually(lambda: any(job.get_status() == JobStatus.STARTED for job in jobs), first.log)
    first.kill()
    worker.kill()
    mlxq_worker(*slow)
    ended(jobs, intake())
    texts = [job.return_value()["text"] for job in jobs]
    assert texts == [f"{i} " + "x" * 40 for i in range(60)]
    eventually(lambda: open_runs(rq_client, queue) == 0)


def test_another_intake_takes_over_with_the_commands(
    rq_queue: Queue, rq_client, queue, intake, redis_client
):
    job = rq_queue.enqueue(tasks.submit, "x")
    first = intake()
    in_flight(rq_client, queue, 1)
    eventually(lambda: redis_client.exists(Keys(queue).job(job.id)))
    before = Job.fetch(job.id, rq_client, "json").worker_name
    first.kill()
    second = intake()
    eventually(lambda: Job.fetch(job.id, rq_client, "json").worker_name != before, second.log)
    send_stop_job_command(rq_client, job.id, serializer="json")
    eventually(lambda: job.get_status() == JobStatus.STOPPED, second.log)


def test_a_call_that_no_worker_could_do_fails_at_once(rq_queue: Queue, intake):
    foreign = rq_queue.enqueue("rq_functions.shout", "x")
    named = rq_queue.enqueue(tasks.submit, "x", id="mine")
    empty = rq_queue.enqueue(tasks.submit, "")
    wrong = rq_queue.enqueue(tasks.submit, 1, 2, 3, 4)
    jobs = [foreign, named, empty, wrong]
    running = intake("--burst")
    assert running.process.wait(60) == 0, running.log
    assert {job.get_status() for job in jobs} == {JobStatus.FAILED}
    said = [job.latest_result().exc_string for job in jobs]
    for text, words in zip(
        said, ["ordinary rq worker", "leave id out", "EmptyPrompt", "TypeError"], strict=True
    ):
        assert words in text


def test_a_success_callback_that_raises_fails_the_job(rq_queue: Queue, intake, mlxq_worker):
    job = rq_queue.enqueue(tasks.submit, "x", on_success=Callback("rq_functions.refuse"))
    mlxq_worker()
    running = intake("--burst")
    assert running.process.wait(60) == 0, running.log
    assert job.get_status() == JobStatus.FAILED
    assert "refused" in job.latest_result().exc_string


def test_the_rq_timeout_is_that_of_an_attempt(
    rq_queue: Queue, intake, redis_client, rq_client, queue
):
    timed = rq_queue.enqueue(tasks.submit, "x", job_timeout=77)
    endless = rq_queue.enqueue(tasks.submit, "x", job_timeout=-1)
    said = rq_queue.enqueue(tasks.submit, kwargs={"prompt": "x", "timeout": 5}, job_timeout=77)
    running = intake()
    eventually(lambda: redis_client.xlen(Keys(queue).jobs()) == 3, running.log)
    specs = [redis_client.hget(Keys(queue).job(job.id), "spec") for job in (timed, endless, said)]
    assert [decode_job(spec).timeout for spec in specs] == [77, None, 5]
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(60) == 0, running.log
    for job in (timed, endless, said):
        assert job.get_status() == JobStatus.STARTED
        job.delete()
    last = intake()
    eventually(lambda: open_runs(rq_client, queue) == 0, last.log)


@pytest.fixture
def desk(rq_client, queue, server, monkeypatch) -> Intake:
    """An intake in this process, not at work."""
    monkeypatch.setenv("MLXQ_REDIS_URL", server.url)
    monkeypatch.setenv("MLXQ_QUEUE", queue)
    return Intake(["pictures"], connection=rq_client, serializer="json")


def test_a_job_taken_but_not_written_down_goes_back(
    rq_queue: Queue, rq_client, desk: Intake, monkeypatch
):
    monkeypatch.setattr("mlxq_producer.rq.finisher.ALONE", 0.0)
    job = rq_queue.enqueue(tasks.submit, "x")
    rq_client.lmove(rq_queue.key, rq_queue.intermediate_queue_key)
    desk._finisher._sweep()
    assert rq_queue.get_job_ids() == [job.id]
    assert rq_client.llen(rq_queue.intermediate_queue_key) == 0


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_handover_broken_off_after_any_step_is_gone_on_with(
    rq_queue: Queue, rq_client, redis_client, queue, desk: Intake, steps
):
    job = rq_queue.enqueue(tasks.submit, "x")
    rq_client.lmove(rq_queue.key, rq_queue.intermediate_queue_key)
    record = desk._desk.take(job)
    if steps > 1:
        desk._desk.hand_over(record, job)
    if steps == 2:  # all but the mlxq job
        redis_client.delete(*redis_client.keys(f"{Keys(queue).prefix}:*"))
    desk._finisher._sweep()
    assert redis_client.xlen(Keys(queue).jobs()) == 1
    assert desk._desk.take(job) == record
    assert job.get_status() == JobStatus.STARTED
    assert rq_client.llen(rq_queue.intermediate_queue_key) == 0
    assert rq_queue.started_job_registry.get_job_ids() == [job.id]
    assert rq_client.ttl(desk._desk.execution(record).key) > 3000
    job.delete()
    desk._finisher._sweep()
    assert open_runs(rq_client, queue) == 0


def test_mlxq_is_where_rq_is_unless_told(
    rq_queue: Queue, rq_client, rq_url, queue, environment, intake, rq, tmp_path
):
    del environment["MLXQ_REDIS_URL"]
    where = ("--redis-url", rq_url, "--queue", queue)
    worker = WorkerProcess(tmp_path / "worker.log", *where, "--model", "noop:")
    job = rq_queue.enqueue(tasks.submit, "hello")
    fed = Queue("feed", connection=rq_client, serializer="json").enqueue(tasks.submit, "fed")
    feed = rq("worker", "--burst", "-w", "rq.SimpleWorker", "feed")
    running = intake("--burst")
    assert (feed.process.wait(60), running.process.wait(60)) == (0, 0), running.log
    worker.close()
    assert job.return_value()["text"] == "hello"
    assert fed.return_value() == fed.id
    assert rq_client.exists(Keys(queue).job(fed.id))


def test_two_queues_are_refused(intake, rq):
    running = rq("worker", "-w", "mlxq_producer.rq.Intake", "pictures", "more")
    assert running.process.wait(60) == 1
    assert "one RQ queue" in running.log


def test_records_are_plain_json(rq_queue: Queue, rq_client, queue, desk: Intake, redis_client):
    job = rq_queue.enqueue(tasks.submit, "x")
    record = desk._desk.take(job)
    [row] = [json.loads(value) for value in rq_client.hvals(Keys(queue).rq)]
    assert row["run"] == row["job"] == job.id == record.run
    with pytest.raises(ResponseError):
        rq_client.hincrby(Keys(queue).rq, job.id)
    desk._desk.records.drop(record.run)


def test_while_mlxq_is_away_a_job_goes_back(rq_queue: Queue, rq_client, queue, monkeypatch):
    monkeypatch.setenv("MLXQ_REDIS_URL", "redis://127.0.0.1:1/0")
    away = Intake(["pictures"], connection=rq_client, serializer="json")
    job = rq_queue.enqueue(tasks.submit, "x")
    rq_client.lmove(rq_queue.key, rq_queue.intermediate_queue_key)
    away.execute_job(job, rq_queue)
    assert rq_client.llen(rq_queue.intermediate_queue_key) == 0
    assert rq_queue.get_job_ids() == [job.id]
    assert job.get_status() == JobStatus.QUEUED
    assert open_runs(rq_client, queue) == 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_thousand_jobs_through_kills(
    rq_queue: Queue, rq_client, queue, intake, mlxq_worker, rq
):
    count = 200 if os.environ.get("MLXQ_TEST_SHORT") else 2000
    note = Callback("rq_functions.note")
    good = [
        rq_queue.enqueue(tasks.submit, f"text {i}", on_success=note, on_failure=note)
        for i in range(count - 12)
    ]
    bad = [
        rq_queue.enqueue(tasks.submit, "x", model="no", retry=Retry(max=2), on_failure=note)
        for _ in range(10)
    ]
    # Far in the future: nothing takes these two but their end.
    stopped, cancelled = (
        rq_queue.enqueue(tasks.submit, "x", not_before=4e9, on_stopped=note) for _ in range(2)
    )
    loud = Queue("loud", connection=rq_client, serializer="json")
    dependents = [loud.enqueue("rq_functions.shout", "x", depends_on=job) for job in good[::100]]

    def done() -> int:
        return rq_client.zcard(rq_queue.finished_job_registry.key)

    running, worker = intake(), mlxq_worker("--lease", "2")
    patiently(lambda: done() >= count // 8, running)
    running.kill()
    running = intake()
    patiently(lambda: done() >= count // 3, running)
    worker.kill()
    mlxq_worker("--lease", "2")
    patiently(lambda: done() >= count // 2, running)
    running.kill()
    running = intake()
    patiently(lambda: stopped.get_status() == cancelled.get_status() == JobStatus.STARTED, running)

    def is_stopped() -> bool:
        """RQ's command is lost where nobody listens, as while an intake takes over from another."""
        with suppress(InvalidJobOperation):
            send_stop_job_command(rq_client, stopped.id, serializer="json")
        return stopped.get_status() == JobStatus.STOPPED

    patiently(is_stopped, running)
    Job.fetch(cancelled.id, rq_client, "json").cancel()
    patiently(lambda: open_runs(rq_client, queue) == 0 and len(rq_queue) == 0, running)
    patiently(lambda: done() == count - 12, running)
    values = [job.return_value() for job in Job.fetch_many([j.id for j in good], rq_client, "json")]
    assert [value["text"] for value in values] == [f"text {i}" for i in range(count - 12)]
    assert {job.get_status() for job in bad} == {JobStatus.FAILED}
    assert {rq_client.llen(f"called:{job.id}") for job in bad} == {3}
    assert all(rq_client.llen(f"called:{job.id}") >= 1 for job in good)
    assert (stopped.get_status(), cancelled.get_status()) == ("stopped", "canceled")
    assert rq("worker", "--burst", "-w", "rq.SimpleWorker", "loud").process.wait(60) == 0
    assert {job.return_value(refresh=True) for job in dependents} == {"X"}


def patiently(condition, running) -> None:
    """Like ``eventually``, for what takes long."""
    end = time.monotonic() + 300
    while not condition():
        assert running.process.poll() is None, running.log[-3000:]
        assert time.monotonic() < end, running.log[-3000:]
        time.sleep(0.2)
