"""Leases of real workers: kept as long as the worker lives, and no longer."""

from __future__ import annotations

import pytest
import redis

from mlxq_producer import Producer
from mlxq_schemas import Keys
from mlxq_schemas.wire import decode_event
from worker_process import PATIENCE, StartWorker, eventually

LEASE = 1.0


@pytest.mark.slow
def test_a_job_longer_than_five_leases_runs_once(
    start_worker: StartWorker, producer: Producer, redis_client: redis.Redis, queue: str
) -> None:
    """A second worker looks on all the time for somebody whose lease has run out."""
    options = ("--lease", str(LEASE), "--look-ahead", "0")
    workers = [start_worker(*options, model="noop:0.02") for _ in range(2)]
    text = "x" * int(6 * LEASE / 0.02)
    producer.submit(id="long", prompt=text, max_tokens=len(text))
    assert producer.result("long", wait=PATIENCE).text == text
    keys = Keys(queue)
    events = [decode_event(fields[b"e"]) for _, fields in redis_client.xrange(keys.events("long"))]
    assert [event.type for event in events].count("started") == 1
    assert redis_client.hget(keys.job("long"), "attempt") == b"1"
    assert not any("lost a job" in worker.log for worker in workers)


@pytest.mark.slow
def test_jobs_of_a_dead_worker_come_before_a_long_queue(
    start_worker: StartWorker, producer: Producer, redis_client: redis.Redis, queue: str
) -> None:
    """The other worker is busy all the time, and there is always a new job for each place."""
    options = ("--lease", "2", "--max-rows", "2")
    dying, _ = [start_worker(*options, "--name", name, model="noop:0.02") for name in ("a", "b")]
    ids = producer.submit_many(
        {"id": f"j{n}", "prompt": "x" * 60, "max_tokens": 60} for n in range(150)
    )
    keys = Keys(queue)

    def owned(name: bytes) -> list[str]:
        known = ((i, redis_client.hmget(keys.job(i), "worker", "state")) for i in ids)
        return [i for i, (worker, state) in known if worker == name and state == b"running"]

    eventually(lambda: owned(b"a"))
    dying.kill()
    lost = owned(b"a")
    assert lost
    for job in lost:
        assert producer.result(job, wait=PATIENCE).ok
    waiting = redis_client.xlen(keys.jobs())
    assert waiting > 30, "they were taken over when nothing else was left"
