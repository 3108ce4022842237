"""Readers of a job that a real worker runs: early, late, cut off, and too slow for the server."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import redis

from mlxq_producer import Producer
from mlxq_schemas import Event, Keys, Token
from mlxq_schemas.wire import encode_event
from worker_process import PATIENCE, StartWorker, eventually

TEXT = "abcdefghij" * 30
MEGABYTE = 1 << 20


class Reader(threading.Thread):
    """Follows in a thread."""

    def __init__(self, source: Iterator[Event]) -> None:
        super().__init__(daemon=True)
        self.events: list[Event] = []
        self._source = source
        self.start()

    def run(self) -> None:
        for event in self._source:
            self.events.append(event)

    def whole(self) -> list[Event]:
        self.join(PATIENCE)
        assert not self.is_alive()
        return self.events


def assert_whole(events: list[Event]) -> None:
    assert [event.seq for event in events] == list(range(len(events)))
    assert [event.type for event in events].count("finished") == 1
    assert "".join(event.text for event in events if isinstance(event, Token)) == TEXT


def subscribers(client: redis.Redis, queue: str) -> int:
    [(_, count)] = client.pubsub_numsub(Keys(queue).tokens("a"))
    return count


def test_early_cut_and_late_followers_get_the_same(
    start_worker: StartWorker, producer: Producer, redis_client: redis.Redis, queue: str
) -> None:
    start_worker(model="noop:0.005")
    readers = [Reader(producer.follow("a", wait_for_job=True)) for _ in range(2)]
    eventually(lambda: subscribers(redis_client, queue) == 2, "early subscriptions")
    producer.submit(id="a", prompt=TEXT, max_tokens=len(TEXT))
    readers.append(Reader(producer.follow("a")))
    for count in (20, 60, 100):
        eventually(lambda count=count: len(readers[0].events) >= count, f"{count} events")
        redis_client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
    stories = [reader.whole() for reader in readers]
    assert len(stories[0]) > 100  # so the cuts came in the middle
    assert_whole(stories[0])
    assert stories[1:] == stories[:1] * 2
    assert list(producer.follow("a")) == stories[0]


@pytest.fixture
def impatient(redis_client: redis.Redis) -> Iterator[redis.Redis]:
    """A client of a server that cuts subscribers off which leave a megabyte unread."""
    name = "client-output-buffer-limit"
    before = redis_client.config_get(name)[name]
    redis_client.config_set(name, f"pubsub {MEGABYTE} 0 0")
    yield redis_client
    redis_client.config_set(name, before)


def test_a_follower_too_slow_for_the_server_is_cut_off_and_misses_nothing(
    start_worker: StartWorker, producer: Producer, impatient: redis.Redis, queue: str
) -> None:
    start_worker(model="noop:0.005")
    producer.submit(id="a", prompt=TEXT, max_tokens=len(TEXT))
    source = producer.follow("a")
    events = [next(source)]
    assert subscribers(impatient, queue) == 1
    filler = encode_event(Token(job="other", text="x" * MEGABYTE))

    def cut_off() -> bool:
        impatient.publish(Keys(queue).tokens("a"), filler)
        return subscribers(impatient, queue) == 0

    eventually(cut_off, "the server's patience")
    events += source
    assert_whole(events)
