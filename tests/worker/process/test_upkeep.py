"""What a worker process does beside its jobs, and how it bears a server that changes its mind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from mlxq_producer import Producer
from mlxq_producer.embedded import EmbeddedServer
from mlxq_schemas import GROUP, Keys
from worker_process import PATIENCE, StartWorker, eventually


@pytest.fixture
def own_server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer() as server:
        yield server


@pytest.fixture
def admin(own_server: EmbeddedServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(own_server.url) as client:
        yield client


@pytest.mark.slow
def test_idle_connections_that_the_server_closes_are_no_trouble(
    own_server: EmbeddedServer, admin: redis.Redis, start_worker: StartWorker, queue: str
) -> None:
    admin.config_set("timeout", 1)
    worker = start_worker("--lease", "8", url=own_server.url)

    def made() -> int:
        return admin.info("stats")["total_connections_received"]

    with Producer(own_server.url, queue) as producer:
        for turn in range(2):
            before = made()
            eventually(lambda before=before: made() >= before + 3, "idle ones are made anew")
            job_id = producer.submit(prompt=f"turn {turn}")
            assert producer.result(job_id, wait=PATIENCE).text == f"turn {turn}"
    worker.terminate()
    assert worker.wait() == 0
    assert "trouble" not in worker.log
    assert " error " not in worker.log


@pytest.mark.slow
def test_no_jobs_are_taken_while_the_server_may_evict_them(
    own_server: EmbeddedServer, admin: redis.Redis, start_worker: StartWorker, queue: str
) -> None:
    keys = Keys(queue)
    worker = start_worker("--name", "w", url=own_server.url)
    admin.config_set("maxmemory-policy", "allkeys-lru")
    eventually(lambda: admin.hget(keys.worker("w"), "state") == b"blocked", "it notices")
    assert admin.hget(keys.worker("w"), "problem") == b"eviction_policy"
    with Producer(own_server.url, queue) as producer:
        # A read that was waiting when the policy changed may still take one.
        eventually(lambda: "may evict" in worker.log, "it says so")
        eventually(lambda: not _blocked_readers(admin), "its last read is over")
        job_id = producer.submit(prompt="later")
        row = admin.hget(keys.worker("w"), "heartbeat")
        eventually(lambda: admin.hget(keys.worker("w"), "heartbeat") != row, "a heartbeat")
        assert admin.hget(keys.job(job_id), "state") == b"queued"
        admin.config_set("maxmemory-policy", "noeviction")
        assert producer.result(job_id, wait=PATIENCE).text == "later"
    eventually(lambda: admin.hget(keys.worker("w"), "state") == b"ready", "it is ready again")
    assert worker.log.count("may evict") == 1


def _blocked_readers(admin: redis.Redis) -> bool:
    return any("b" in row["flags"] for row in admin.client_list())


def test_a_worker_that_ends_takes_its_name_along(
    start_worker: StartWorker, producer: Producer, redis_client: redis.Redis, queue: str
) -> None:
    keys = Keys(queue)

    def names() -> set[bytes]:
        rows = (row for s in keys.all_jobs() for row in redis_client.xinfo_consumers(s, GROUP))
        return {row["name"] for row in rows}

    worker = start_worker("--name", "w1", model="noop:0.05")
    second = start_worker("--name", "w2", "--max-rows", "1", "--grace", "0.5", model="noop:0.05")
    eventually(lambda: names() == {b"w1", b"w2"}, "both read")
    worker.terminate()
    assert worker.wait() == 0
    assert names() == {b"w2"}
    job_id = producer.submit(prompt="x" * 2000, max_tokens=2000)
    eventually(lambda: redis_client.hget(keys.job(job_id), "state") == b"running", "it runs")
    second.terminate()
    assert second.wait() == 0
    assert names() == {b"w2"}  # what it handed back is still pending there
    redis_client.delete(*keys.all_jobs(), keys.job(job_id), keys.events(job_id))
