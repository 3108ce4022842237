"""Leases of real workers: kept as long as the worker lives, and no longer."""

from __future__ import annotations

import pytest
import redis

from mlxq_producer import Producer
from mlxq_schemas import Keys
from mlxq_schemas.wire import decode_event
from worker_process import PATIENCE, StartWorker

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
