"""One suite for every kind of server: what producers, readers and workers do on any of them."""

from __future__ import annotations

import asyncio
import os
import threading
import time

import pytest
import redis

from mlxq_producer import AsyncProducer, Producer, following
from mlxq_producer.samples import sample_jobs
from mlxq_schemas import Event
from topologies.conftest import StartWorker
from topologies.programs import extras
from topologies.sites import Site
from topologies.stories import KEYS, assert_whole, check, submit, token_seen
from worker_process import PATIENCE, eventually

SHORT = "MLXQ_TEST_SHORT" in os.environ
QUICK = [("redis", "tls"), ("valkey", "sentinel"), ("valkey", "cluster")]
FEW = [("redis", "sentinel"), ("redis", "cluster"), *((name, "single") for name in extras())]
MANY = [
    ("valkey", "unix"),
    ("redis", "single"),
    ("redis", "unix"),
    ("redis", "sentinel"),
    ("redis", "cluster"),
    *((name, kind) for name in extras() for kind in ("single", "sentinel")),
]
SLOW = FEW if SHORT else MANY
ALL = [*QUICK, *(pytest.param(where, marks=pytest.mark.slow) for where in SLOW)]


@pytest.mark.parametrize("site", ALL, ids="-".join, indirect=True)
def test_jobs_are_submitted_followed_live_and_read(
    site: Site, producer: Producer, start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "POLL_SECONDS", 1000.0)  # what arrives must do
    live: list[Event] = []

    def listen() -> None:
        with Producer(site.url("reader")) as reader:
            live.extend(reader.follow("j0", wait_for_job=True))

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    with site.admin() as client:
        ask = "SHARDNUMSUB" if "cluster" in site.form else "NUMSUB"
        channel = KEYS.tokens("j0")
        eventually(lambda: client.execute_command("PUBSUB", ask, channel)[1] == 1, "the listener")
    start_worker("--max-rows", "4")
    texts = submit(producer, 12)
    listener.join(PATIENCE)
    assert_whole(live, texts["j0"])
    check(site, texts)
    with Producer(site.url("reader")) as reader:
        assert len(reader.status().workers) == 1


@pytest.mark.parametrize("site", ALL, ids="-".join, indirect=True)
def test_asyncio_is_the_same(site: Site, start_worker: StartWorker) -> None:
    start_worker()

    async def story() -> None:
        async with (
            AsyncProducer(site.url("producer")) as producer,
            AsyncProducer(site.url("reader")) as reader,
        ):
            assert await producer.submit(id="a", prompt="over asyncio", priority="high") == "a"
            assert_whole([event async for event in reader.follow("a")], "over asyncio")
            assert (await producer.result("a")).ok
            assert await producer.cancel("a") == "ended"

    asyncio.run(asyncio.wait_for(story(), PATIENCE))


@pytest.mark.parametrize("site", ALL, ids="-".join, indirect=True)
def test_running_and_queued_jobs_are_cancelled(
    site: Site, producer: Producer, start_worker: StartWorker
) -> None:
    start_worker("--max-rows", "1", "--look-ahead", "0", model="noop:0.02")
    for job_id in ("running", "queued"):
        producer.submit(id=job_id, prompt="x" * 5000, max_tokens=5000)
    token_seen(producer, "running")
    assert producer.cancel("queued") == "cancelled"
    assert producer.cancel("running") == "asked"
    for job_id in ("queued", "running"):
        assert producer.result(job_id, wait=PATIENCE).type == "cancelled"


@pytest.mark.parametrize("site", ALL, ids="-".join, indirect=True)
def test_delayed_jobs_and_dead_letters(
    site: Site, producer: Producer, start_worker: StartWorker
) -> None:
    start_worker()
    producer.submit(id="later", prompt="in time", not_before=time.time() + 0.5)
    for job_id in ("again", "never"):
        producer.submit(id=job_id, prompt="x", model="none-such")
        assert producer.result(job_id, wait=PATIENCE).code == "unknown_model"
    assert {letter.id for letter in producer.dead()} == {"again", "never"}
    assert producer.retry_dead("again") == ["again"]
    assert [letter.id for letter in producer.drop_dead("never")] == ["never"]
    eventually(lambda: [letter.id for letter in producer.dead()] == ["again"], "a second death")
    assert producer.result("later", wait=PATIENCE).text == "in time"


@pytest.mark.parametrize("site", ALL, ids="-".join, indirect=True)
def test_a_killed_workers_jobs_are_resumed(
    site: Site, producer: Producer, start_worker: StartWorker
) -> None:
    options = ("--lease", "1", "--max-rows", "4")
    victim = start_worker(*options, model="noop:0.01")
    texts = submit(producer, 4, length=150)
    token_seen(producer, "j0")
    victim.kill()
    start_worker(*options)
    check(site, texts)
    with site.admin() as client:
        assert client.hget(KEYS.job("j0"), "deaths") == b"1"


@pytest.mark.parametrize("site", ALL, ids="-".join, indirect=True)
def test_the_rights_of_the_manual_are_enough_for_upkeep(
    site: Site, producer: Producer, start_worker: StartWorker
) -> None:
    with site.admin() as client:
        for job_id, fields in {"later": {"not_before": time.time() + 3600}, "dead": {}}.items():
            asked = {"prompt": "x", "images": [job_id.encode()], "model": "none-such"}
            producer.submit(id=job_id, **asked, **fields)
        worker = start_worker("--name", "w")
        assert producer.result("dead", wait=PATIENCE).code == "unknown_model"
        blobs = list(client.scan_iter(f"{KEYS.prefix}:blob:*"))
        assert len(blobs) == 2
        for blob in blobs:
            client.expire(blob, 10)
        client.delete(KEYS.keeper)
        worker.terminate()
        assert worker.wait() == 0
        names = (row for s in KEYS.all_jobs() for row in client.xinfo_consumers(s, "workers"))
        assert list(names) == []
        second = start_worker()
        eventually(lambda: all(client.ttl(blob) > 80_000 for blob in blobs), "both are kept")
        assert producer.retry_dead("dead") == ["dead"]
        for one in (worker, second):
            assert "trouble" not in one.log
            assert "names of ended workers" not in one.log


@pytest.mark.slow
@pytest.mark.parametrize("site", QUICK if SHORT else [*QUICK, *SLOW], ids="-".join, indirect=True)
def test_the_bundled_model_answers_about_a_picture(
    site: Site, producer: Producer, start_worker: StartWorker
) -> None:
    start_worker(model=None)
    sample = next(iter(sample_jobs()))
    producer.submit(id="picture", prompt=sample.prompt, images=sample.images)
    assert producer.result("picture", wait=PATIENCE).text == sample.expect


@pytest.mark.parametrize("site", QUICK, ids="-".join, indirect=True)
def test_rights_end_where_the_manual_says(site: Site, producer: Producer) -> None:
    producer.submit(id="a", prompt="x")
    with Producer(site.url("reader")) as reader, pytest.raises(Exception, match="refused"):
        reader.submit(id="b", prompt="x")
    for party in ("producer", "reader", "worker"):
        with Producer(site.url(party))._client as client:
            assert client.hget(KEYS.job("a"), "state") == b"queued"
            for command in (["FLUSHALL"], ["KEYS", "*"], ["CONFIG", "GET", "*"], ["ACL", "LIST"]):
                with pytest.raises(redis.exceptions.NoPermissionError):
                    client.execute_command(*command)
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.hget("mlxq:{captions}other:job:a", "state")
