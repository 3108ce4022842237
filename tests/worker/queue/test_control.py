"""Messages to running workers."""

from __future__ import annotations

import time

import pytest
import redis

from lua_worker import LuaWorker
from mlxq_schemas import Job, Keys
from mlxq_worker.queue import control as module
from mlxq_worker.queue.connection import connect
from mlxq_worker.queue.control import Control
from mlxq_worker.queue.link import LINK_ERRORS
from tcp_proxy import TcpProxy


class Office:
    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self.held: list[tuple[str, str]] = []
        self.cancelled: list[tuple[str, str]] = []
        self.reclaims = 0
        self.control = Control(
            client,
            keys,
            held=lambda: self.held,
            cancel=lambda job_id, life: self.cancelled.append((job_id, life)),
            reclaim=self.reclaim,
        )

    def reclaim(self) -> None:
        self.reclaims += 1


def test_words_are_obeyed_and_others_ignored(
    client: redis.Redis, keys: Keys, redis_client: redis.Redis
) -> None:
    office = Office(client, keys)
    office.control.step()  # subscribed
    messages: list[str | bytes] = [
        "cancel a 7",
        "reclaim",
        "dance",
        "cancel",
        "cancel a",
        b"\xff\xfe",
        "",
    ]
    for message in messages:
        redis_client.publish(keys.control, message)
    for _ in messages:
        office.control.step()
    assert (office.cancelled, office.reclaims) == ([("a", "7")], 1)
    office.control.close()


def test_a_cancel_that_was_not_heard_is_found_on_subscribing(
    client: redis.Redis, keys: Keys, other: LuaWorker, redis_client: redis.Redis
) -> None:
    for name in ("a", "b"):
        other.submit(Job(id=name, prompt="p"))
    for entry, job_id in other.read(2):
        other.claim(job_id, entry)
    assert other.cancel("b") == b"asked"
    office = Office(client, keys)
    lives = {name: other.state(name)["life"] for name in ("a", "b")}
    office.held = [*lives.items(), ("b", "an earlier life"), ("odd", "1")]
    redis_client.set(keys.job("odd"), "not a hash", ex=60)
    office.control.step()
    found = ("b", lives["b"])
    assert office.cancelled == [found]
    [row] = [c for c in redis_client.client_list(_type="pubsub") if c["name"].endswith("-test")]
    redis_client.client_kill(row["addr"])
    with pytest.raises(redis.ConnectionError):
        office.control.step()
    office.control.step()  # on a new connection
    assert office.cancelled == [found, found]
    office.control.close()


def test_a_subscription_that_is_cut_is_made_again_without_a_word(
    proxy: TcpProxy, keys: Keys, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SETTLED", 0.0)
    client = connect(proxy.url, "cut")
    office = Office(client, keys)
    office.control.step()
    proxy.cut()
    for _ in range(3):
        office.control.step()
    redis_client.publish(keys.control, "cancel a 7")
    office.control.step()
    assert office.cancelled == [("a", "7")]
    office.control.close()
    proxy.close()
    with pytest.raises(LINK_ERRORS):
        office.control.step()
    client.close()


def test_a_silent_connection_is_tried_and_one_that_does_not_answer_is_replaced(
    proxy: TcpProxy, keys: Keys, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in (("PING", 0.0), ("LISTEN", 0.05), ("SETTLED", 0.0)):
        monkeypatch.setattr(module, name, seconds)
    monkeypatch.setattr(module, "SOCKET_TIMEOUT", 0.1)
    client = connect(proxy.url, "cut")
    office = Office(client, keys)
    for _ in range(8):
        office.control.step()
    proxy.delay("PING", 3.0)
    office.held = [("b", "7")]
    redis_client.hset(keys.job("b"), mapping={"cancel": 1, "life": 7})
    redis_client.expire(keys.job("b"), 60)
    end = time.monotonic() + 120
    while not office.cancelled and time.monotonic() < end:
        office.control.step()
    assert office.cancelled == [("b", "7")]  # it has subscribed anew, and looked what it missed
    office.control.close()
    client.close()
