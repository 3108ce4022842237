"""Delayed jobs reach their stream when they are due, once."""

from __future__ import annotations

import threading
import time

import pytest
import redis

from lua_worker import LuaWorker
from mlxq_producer.embedded import EmbeddedServer
from mlxq_schemas import GROUP, Job, Keys
from mlxq_schemas.errors import QueueError
from mlxq_worker.queue import delayed as module
from mlxq_worker.queue.connection import connect
from mlxq_worker.queue.delayed import Promoter
from mlxq_worker.queue.link import Link


def later(other: LuaWorker, *names: str, seconds: float = 3600.0, **fields: str) -> None:
    for name in names:
        spec = {"id": name, "prompt": "p", "not_before": time.time() + seconds, **fields}
        other.submit(Job.model_validate(spec))


def come_due(client: redis.Redis, keys: Keys, *names: str) -> None:
    client.zadd(keys.delayed, dict.fromkeys(names, time.time() - 1))


def test_what_is_due_moves_to_its_stream(
    link: Link, keys: Keys, other: LuaWorker, redis_client: redis.Redis
) -> None:
    later(other, "a", "b")
    later(other, "urgent", priority="high")
    assert (other.depth(), other.state("a")["state"]) == (0, "delayed")
    come_due(redis_client, keys, "a", "urgent")
    assert Promoter(link, keys).step() == module.PERIOD
    assert [fields for _, fields in redis_client.xrange(keys.jobs("high"))] == [{b"id": b"urgent"}]
    assert [fields for _, fields in redis_client.xrange(keys.jobs())] == [{b"id": b"a"}]
    assert redis_client.zrange(keys.delayed, 0, -1) == [b"b"]
    assert other.do(["x"]) == "a"
    assert other.events("a")[0].type == "queued"


def test_the_pause_ends_when_the_next_is_due(link: Link, keys: Keys, other: LuaWorker) -> None:
    later(other, "a", seconds=0.2)
    assert Promoter(link, keys).step() <= 0.2


def test_many_pages_take_no_pause(
    link: Link,
    keys: Keys,
    other: LuaWorker,
    redis_client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PAGE", 2)
    later(other, *"abc")
    come_due(redis_client, keys, *"abc")
    promoter = Promoter(link, keys)
    assert promoter.step() == 0.0
    assert promoter.step() == module.PERIOD
    assert other.depth() == 3


def test_many_workers_move_each_job_once(
    server: EmbeddedServer, keys: Keys, other: LuaWorker, redis_client: redis.Redis
) -> None:
    names = [f"j{i}" for i in range(150)]
    later(other, *names)
    come_due(redis_client, keys, *names)
    client = connect(server.url, "test", keys.queue)

    def move() -> None:
        link = Link(client)
        for _ in range(4):
            Promoter(link, keys).step()
        link.close()

    threads = [threading.Thread(target=move) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    moved = [fields[b"id"].decode() for _, fields in redis_client.xrange(keys.jobs())]
    assert sorted(moved) == sorted(names)
    client.close()


def test_a_job_may_be_delayed_by_hand(
    link: Link, keys: Keys, other: LuaWorker, redis_client: redis.Redis
) -> None:
    redis_client.hset(keys.job("hand"), "spec", '{"prompt": "p"}')
    redis_client.zadd(keys.delayed, {"hand": 1.0, "nobody": 1.0})
    Promoter(link, keys).step()
    assert other.do(["x"]) == "hand"
    assert not redis_client.exists(keys.delayed)


def test_a_job_that_cannot_move_is_told_and_stops_no_other(
    link: Link, keys: Keys, other: LuaWorker, redis_client: redis.Redis
) -> None:
    later(other, "a")
    redis_client.set(keys.job("odd"), "not a hash", ex=60)
    come_due(redis_client, keys, "odd", "a")
    with pytest.raises(QueueError, match="1 job"):
        Promoter(link, keys).step()
    assert other.do(["x"]) == "a"


def test_a_stray_entry_of_a_delayed_job_is_nothing(
    other: LuaWorker, keys: Keys, redis_client: redis.Redis
) -> None:
    later(other, "a")
    redis_client.xadd(keys.jobs(), {"id": "a"})
    [(entry, _)] = other.read()
    assert other.claim("a", entry) == [b"gone"]
    assert other.state("a")["state"] == "delayed"
    assert redis_client.xpending(keys.jobs(), GROUP)["pending"] == 0
