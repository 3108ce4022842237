"""Messages to running workers."""

from __future__ import annotations

import pytest
import redis

from lua_worker import LuaWorker
from mlxq_schemas import Job, Keys
from mlxq_worker.queue.control import Control


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
