"""Results, cancelling, and the status of a queue."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
import redis

from mlxq_producer import AsyncProducer, EmbeddedServer, Producer
from mlxq_schemas import Keys
from mlxq_schemas.errors import QueueUnavailable, UnknownJob, WaitTimeout


def test_a_result_is_there_once_the_job_has_ended(producer, worker):
    producer.submit(id="a", prompt="x")
    with pytest.raises(WaitTimeout, match="job a"):
        producer.result("a")
    worker.claim()
    with pytest.raises(WaitTimeout):
        producer.result("a", wait=0.05)
    worker.finish("a", "text")
    result = producer.result("a")
    assert (result.ok, result.text, result.job) == (True, "text", "a")
    assert producer.result("a", wait=None) == result


@pytest.mark.parametrize("wait", [None, 30])
def test_waiting_wakes_at_the_end(producer, worker, wait):
    producer.submit(id="a", prompt="x")
    worker.claim()
    found = []
    waiting = threading.Thread(target=lambda: found.append(producer.result("a", wait=wait)))
    waiting.start()
    worker.tokens("a", "text")
    worker.fail("a", "media_invalid", "no good")
    waiting.join(30)
    assert (found[0].ok, found[0].code, found[0].message) == (False, "media_invalid", "no good")


def test_an_unknown_job_has_no_result(producer):
    for wait in (0, 5, None):
        with pytest.raises(UnknownJob, match="no job a"):
            producer.result("a", wait=wait)


def test_cancelling_a_job_that_waits_ends_it(server, queue, redis_client, producer):
    producer.submit(id="a", prompt="x", priority="low")
    with Producer(server.url, queue, result_ttl=50) as other:
        assert other.cancel("a") == "cancelled"
        assert other.cancel("a") == "ended"
    assert redis_client.xlen(Keys(queue).jobs("low")) == 0
    assert producer.result("a").type == "cancelled"
    assert [event.type for event in producer.follow("a")] == ["queued", "cancelled"]
    assert 0 < redis_client.ttl(Keys(queue).result("a")) <= 50


def test_cancelling_a_job_that_runs_asks_its_worker(producer, worker, redis_client, queue):
    producer.submit(id="a", prompt="x")
    worker.claim()
    with redis_client.pubsub() as control:
        control.subscribe(Keys(queue).control)
        assert control.get_message(timeout=5)["type"] == "subscribe"
        assert producer.cancel("a") == "asked"
        life = redis_client.hget(Keys(queue).job("a"), "life")
        assert control.get_message(timeout=5)["data"] == b"cancel a " + life
    worker.finish("a")
    assert producer.cancel("a") == "ended"


def test_an_unknown_job_cannot_be_cancelled(producer):
    with pytest.raises(UnknownJob):
        producer.cancel("a")


def test_the_status_of_an_empty_queue(producer, queue):
    told = producer.status().as_dict()
    assert told.pop("time") == pytest.approx(producer.now(), abs=60)
    server = told.pop("server")
    assert server["eviction_policy"] == "noeviction"
    assert (type(server["memory_used"]), server["memory_limit"]) == (int, 0)
    assert told == {
        "queue": queue,
        "depth": {"high": 0, "normal": 0, "low": 0},
        "in_flight": 0,
        "waiting": 0,
        "waiting_by_priority": {"high": 0, "normal": 0, "low": 0},
        "delayed": 0,
        "dead": 0,
        "oldest_waiting": None,
        "oldest_model": None,
        "workers": [],
        "ended_workers": [],
        "jobs_per_s": 0.0,
        "tokens_per_s": 0.0,
    }


def test_the_status_counts_what_waits_runs_and_failed(producer, worker, redis_client, queue):
    for job_id in ("a", "b", "c"):
        producer.submit(id=job_id, prompt="x")
    producer.submit(id="d", prompt="x", priority="low")
    worker.claim()
    worker.claim()
    worker.fail("a", "media_invalid", "no good")
    now = time.time()
    redis_client.zadd(Keys(queue).workers, {"w1": now + 60, "gone": now - 60})
    redis_client.hset(
        Keys(queue).worker("w1"), mapping={"model": "tiny", "rows": 1, "jobs_per_s": 2.5}
    )
    redis_client.expire(Keys(queue).worker("w1"), 60)
    status = producer.status()
    assert status.depth == {"high": 0, "normal": 2, "low": 1}
    assert (status.in_flight, status.waiting, status.dead) == (1, 2, 1)
    assert status.waiting_by_priority == {"high": 0, "normal": 1, "low": 1}
    assert status.oldest_waiting is not None
    [row] = status.workers
    assert (row.name, row.fields["model"], row.number("rows")) == ("w1", "tiny", 1.0)
    assert (status.jobs_per_s, status.tokens_per_s, row.number("model")) == (2.5, 0.0, 0.0)


def test_the_oldest_waiting_job_is_the_first_that_no_worker_has_read(
    producer, worker, redis_client, queue
):
    long_ago = int((time.time() - 500) * 1000)
    for i, job_id in enumerate(("read", "waits")):
        redis_client.hset(Keys(queue).job(job_id), "spec", '{"prompt": "x"}')
        redis_client.xadd(Keys(queue).jobs(), {"id": job_id}, id=f"{long_ago + 200_000 * i}-0")
    assert producer.status().oldest_waiting > 450
    worker.claim()
    assert 250 < producer.status().oldest_waiting < 450
    worker.claim()
    assert producer.status().oldest_waiting is None


def test_the_async_client_does_the_same(server, queue, worker):
    async def story() -> None:
        async with AsyncProducer(server.url, queue) as producer:
            await producer.submit(id="a", prompt="x")
            with pytest.raises(WaitTimeout):
                await producer.result("a", wait=0.05)
            assert (await producer.status()).waiting == 1
            assert await producer.cancel("a") == "cancelled"
            assert (await producer.result("a", wait=None)).type == "cancelled"
            with pytest.raises(UnknownJob):
                await producer.cancel("b")
            ids = await producer.submit_many([{"id": "b", "prompt": "x"}])
            await asyncio.to_thread(worker.claim)
            await asyncio.to_thread(worker.finish, "b", "")
            seen = [event.type async for event in producer.follow_many(ids)]
            assert seen == ["queued", "started", "finished"]

    asyncio.run(story())


def test_a_reader_outlives_a_restart_of_the_server(tmp_path):
    with EmbeddedServer(data_dir=tmp_path) as own, Producer(own.url, "q") as producer:
        producer.submit(id="a", prompt="x")
        events = producer.follow("a")
        assert next(events).type == "queued"
        port = own.port
        own.stop()
        own.start()
        assert own.port == port
        assert producer.cancel("a") == "cancelled"
        assert [event.type for event in events] == ["cancelled"]


def test_a_reader_gives_up_on_a_server_that_stays_away(monkeypatch):
    monkeypatch.setattr("mlxq_producer.following.RECONNECT_SECONDS", 0.1)
    with EmbeddedServer() as own, Producer(own.url, "q") as producer:
        producer.submit(id="a", prompt="x")
        events = producer.follow("a")
        next(events)
        own.stop()
        with pytest.raises(QueueUnavailable):
            list(events)


def test_a_client_that_was_given_stays_open(server, queue):
    with redis.Redis.from_url(server.url) as client:
        with Producer(queue=queue, client=client) as producer:
            producer.submit(id="a", prompt="x")
        assert client.get(Keys(queue).result("a")) is None
