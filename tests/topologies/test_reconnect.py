"""One server that forgets, restarts or is full: workers go on, and nothing half done stays."""

from __future__ import annotations

import pytest

from mlxq_producer import Producer
from mlxq_schemas.errors import RedisFull
from topologies.conftest import StartWorker
from topologies.programs import extras
from topologies.sites import Site
from topologies.stories import KEYS, check, submit, token_seen
from worker_process import PATIENCE, eventually

EVERY_PROGRAM = [
    ("valkey", "single"),
    ("redis", "single"),
    *(pytest.param((name, "single"), marks=pytest.mark.slow) for name in extras()),
]


@pytest.mark.parametrize("site", EVERY_PROGRAM, ids="-".join, indirect=True)
def test_flushall_does_not_make_blocked_workers_deaf(
    site: Site, producer: Producer, start_worker: StartWorker
) -> None:
    workers = [start_worker() for _ in range(2)]
    with site.admin() as client:
        eventually(lambda: client.info("clients")["blocked_clients"] == 2, "two that wait")
        client.flushall()
    check(site, submit(producer, 10))
    assert [worker.process.poll() for worker in workers] == [None, None]


@pytest.mark.parametrize("site", EVERY_PROGRAM, ids="-".join, indirect=True)
def test_a_full_server_takes_no_job_and_loses_none(
    site: Site, producer: Producer, start_worker: StartWorker
) -> None:
    worker = start_worker("--max-rows", "2", "--look-ahead", "0", model="noop:0.005")
    texts = submit(producer, 4, length=100)
    token_seen(producer, "j0")
    with site.admin() as client:
        client.config_set("maxmemory", 1)
        with pytest.raises(RedisFull) as caught:
            producer.submit(id="too-much", prompt="x")
        assert caught.value.code == "redis_full"
        eventually(lambda: "duty=publish" in worker.log, "a refused write")
        ended = client.xlen(KEYS.results)
        assert sum(client.xlen(stream) for stream in KEYS.all_jobs()) == len(texts) - ended
        assert not client.exists(KEYS.job("too-much"))
        client.config_set("maxmemory", 0)
    check(site, texts)


@pytest.mark.slow
@pytest.mark.parametrize(
    "site", [(name, "kept") for name in ("valkey", "redis", *extras())], ids="-".join, indirect=True
)
def test_a_server_that_crashes_with_its_log_on_disk_loses_nothing(
    site: Site, producer: Producer, start_worker: StartWorker
) -> None:
    [server] = site.servers
    worker = start_worker("--lease", "2", model="noop:0.01")
    texts = submit(producer, 6, length=200)
    token_seen(producer, "j0")
    for _ in range(3):
        server.kill()
        server.start()
        token_seen(producer, "j0")
    check(site, texts)
    assert worker.process.poll() is None
    assert producer.result("j5", wait=PATIENCE).ok
