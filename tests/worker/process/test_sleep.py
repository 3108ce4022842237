"""Workers that sleep, all or one of them: no job dies of it, and none is computed twice for it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import redis

from mlxq_producer import Producer
from mlxq_schemas import GROUP, Keys
from worker_process import PATIENCE, StartWorker, WorkerProcess, eventually

HOUR_MS = 3_600_000
LEASE = 3.0
TEXT = "x" * 600


def signal_all(workers: Sequence[WorkerProcess], what: signal.Signals) -> None:
    for worker in workers:
        os.kill(worker.process.pid, what)


def counted(client: redis.Redis, keys: Keys, ids: Sequence[str], name: str) -> list[int]:
    return [int(client.hget(keys.job(i), name) or 0) for i in ids]


def all_run(client: redis.Redis, keys: Keys, ids: Sequence[str]) -> Callable[[], bool]:
    return lambda: all(client.hget(keys.job(i), "state") == b"running" for i in ids)


def an_hour_passes(client: redis.Redis, stream: str) -> int:
    """Every pending entry is as idle as after an hour of sleep; how many there are."""
    rows: list[Any] = client.xpending_range(stream, GROUP, "-", "+", 100)
    for row in rows:
        entry = [row["message_id"]]
        client.xclaim(stream, GROUP, row["consumer"], 0, entry, idle=HOUR_MS, justid=True)
    return len(rows)


@pytest.mark.slow
def test_nothing_is_taken_over_after_a_shared_sleep(
    start_worker: StartWorker, producer: Producer, redis_client: redis.Redis, queue: str
) -> None:
    options = ("--lease", str(LEASE), "--max-rows", "8", "--look-ahead", "0")
    workers = [start_worker(*options, model="noop:0.05") for _ in range(2)]
    keys, ids = Keys(queue), [f"j{i}" for i in range(8)]
    for job in ids:
        producer.submit(id=job, prompt=TEXT, max_tokens=len(TEXT))
    eventually(all_run(redis_client, keys, ids))
    for turn in range(1, 4):
        signal_all(workers, signal.SIGSTOP)
        time.sleep(0.7 * LEASE)
        assert an_hour_passes(redis_client, keys.jobs()) == 8
        signal_all(workers, signal.SIGCONT)
        for worker in workers:
            eventually(lambda w=worker, n=turn: w.log.count("stood still") >= n)
        time.sleep(LEASE / 2)  # two sweeps of each
    assert counted(redis_client, keys, ids, "deaths") == [0] * 8
    assert counted(redis_client, keys, ids, "attempt") == [1] * 8
    assert not any("lost a job" in worker.log for worker in workers)
    assert [producer.result(job, wait=PATIENCE).text for job in ids] == [TEXT] * 8


@pytest.mark.slow
def test_three_sleeps_of_its_owners_do_not_make_a_job_poison(
    start_worker: StartWorker, producer: Producer, redis_client: redis.Redis, queue: str
) -> None:
    """Its next owner is awake and goes on; the sleeper takes back the death when it wakes."""
    options = ("--lease", str(LEASE), "--look-ahead", "0")
    workers = {f"w{i}": start_worker(*options, "--name", f"w{i}", model="noop:0.05") for i in "ab"}
    keys = Keys(queue)
    producer.submit(id="long", prompt=TEXT, max_tokens=len(TEXT))
    job = keys.job("long")

    def owner() -> str:
        return (redis_client.hget(job, "worker") or b"").decode()

    for turn in range(1, 5):
        eventually(lambda: owner() in workers)
        asleep = workers[owner()]
        before = owner()
        signal_all([asleep], signal.SIGSTOP)
        eventually(lambda name=before: owner() != name, "a take-over")
        assert redis_client.hget(job, "deaths") == b"1"
        signal_all([asleep], signal.SIGCONT)
        eventually(lambda: redis_client.hget(job, "deaths") == b"0", "the death was taken back")
        assert redis_client.hget(job, "attempt") == str(turn + 1).encode()
    result = producer.result("long", wait=PATIENCE)
    assert result.ok
    assert result.text == TEXT
