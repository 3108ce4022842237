"""Following: in order, without gap or repeat, to the end, whatever happens on the way."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from mlxq_producer import AsyncProducer, Producer, following
from mlxq_schemas import Event, Keys
from mlxq_schemas.errors import Expired, InvalidJob, UnknownJob, WaitTimeout


class Reader(threading.Thread):
    """Follows a job in a thread; ``events`` grows as they come."""

    def __init__(self, events: Iterator[Event]) -> None:
        super().__init__(daemon=True)
        self.events: list[Event] = []
        self.error: BaseException | None = None
        self._source = events
        self.start()

    def run(self) -> None:
        try:
            for event in self._source:
                self.events.append(event)
        except BaseException as error:  # noqa: BLE001 - handed to the test
            self.error = error

    def wait_for(self, count: int) -> None:
        until(lambda: len(self.events) >= count or not self.is_alive())
        assert len(self.events) >= count

    def all(self) -> list[Event]:
        self.join(30)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error
        return self.events


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def assert_whole(events: list[Event], text: str, first: int = 0) -> None:
    """One gapless story with one end, its tokens adding up to ``text``."""
    assert [event.seq for event in events] == list(range(first, first + len(events)))
    assert [event.type for event in events].count("finished") == 1
    assert events[-1].type == "finished"
    assert "".join(event.text for event in events if event.type == "token") == text


@pytest.fixture
def never_polls(monkeypatch) -> None:
    """What arrives must do: silence is no reason to read a stream."""
    monkeypatch.setattr(following, "POLL_SECONDS", 1000.0)


def subscribers(client: redis.Redis, queue: str, job_id: str) -> int:
    [(_, count)] = client.pubsub_numsub(Keys(queue).tokens(job_id))
    return count


def cut_subscribers(client: redis.Redis) -> None:
    client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")


@pytest.mark.usefixtures("never_polls")
def test_an_early_reader_gets_every_event_live(producer, worker, redis_client, queue):
    producer.submit(id="a", prompt="x")
    reader = Reader(producer.follow("a"))
    reader.wait_for(1)
    worker.claim()
    for count, word in enumerate(["a ", "red ", "circle"], 3):
        worker.tokens("a", word)
        reader.wait_for(count)
    worker.finish("a", "a red circle")
    assert_whole(reader.all(), "a red circle")
    until(lambda: subscribers(redis_client, queue, "a") == 0)


def test_a_late_reader_gets_the_same(producer, worker):
    producer.submit(id="a", prompt="x")
    worker.claim()
    worker.tokens("a", "a ", "b")
    worker.finish("a", "a b")
    assert_whole(list(producer.follow("a")), "a b")


def test_a_reader_may_begin_in_the_middle(producer, worker):
    producer.submit(id="a", prompt="x")
    worker.claim()
    worker.tokens("a", "a ", "b")
    worker.finish("a", "a b")
    assert_whole(list(producer.follow("a", from_seq=3)), "b", first=3)
    assert [event.type for event in producer.follow("a", from_seq=4)] == ["finished"]
    assert list(producer.follow("a", from_seq=5)) == []


def test_a_long_story_is_read_page_by_page(producer, worker, monkeypatch):
    monkeypatch.setattr(following, "PAGE", 7)
    producer.submit(id="a", prompt="x")
    worker.claim()
    words = [f"{i} " for i in range(19)]
    worker.tokens("a", *words)
    worker.finish("a", "".join(words))
    assert_whole(list(producer.follow("a")), "".join(words))


@pytest.mark.usefixtures("never_polls")
def test_lost_messages_are_fetched_from_the_stream(producer, worker):
    producer.submit(id="a", prompt="x")
    reader = Reader(producer.follow("a"))
    worker.claim()
    reader.wait_for(2)
    worker.lose_messages("a", "lost ", "too ")
    worker.tokens("a", "seen ")
    reader.wait_for(5)
    worker.lose_messages("a", "end")
    worker.finish("a", "lost too seen end")
    assert_whole(reader.all(), "lost too seen end")


def test_a_lost_end_does_not_hang_the_reader(producer, worker):
    producer.submit(id="a", prompt="x")
    reader = Reader(producer.follow("a"))
    worker.claim()
    reader.wait_for(2)
    worker.finish("a", "", channel="nowhere")
    assert_whole(reader.all(), "")


def test_repeated_and_foreign_messages_are_dropped(producer, worker, redis_client, queue):
    channel = Keys(queue).tokens("a")
    producer.submit(id="a", prompt="x")
    producer.submit(id="b", prompt="x")
    reader = Reader(producer.follow("a"))
    worker.claim()
    worker.tokens("a", "once ")
    reader.wait_for(3)
    for _, fields in redis_client.xrange(Keys(queue).events("a")):
        redis_client.publish(channel, fields[b"e"])
    for _, fields in redis_client.xrange(Keys(queue).events("b")):
        redis_client.publish(channel, fields[b"e"])
    worker.tokens("a", "only")
    worker.finish("a", "once only")
    assert_whole(reader.all(), "once only")


@pytest.mark.usefixtures("never_polls")
def test_a_cut_connection_loses_nothing(producer, worker, redis_client, queue):
    producer.submit(id="a", prompt="x")
    reader = Reader(producer.follow("a"))
    worker.claim()
    reader.wait_for(2)
    for i in range(5):
        cut_subscribers(redis_client)
        worker.tokens("a", f"{i} ")
        reader.wait_for(3 + i)
    cut_subscribers(redis_client)
    worker.finish("a", "0 1 2 3 4 ")
    assert_whole(reader.all(), "0 1 2 3 4 ")


def test_a_link_that_breaks_all_the_time_is_no_absent_server(
    producer, worker, redis_client, monkeypatch
):
    monkeypatch.setattr(following, "RECONNECT_SECONDS", 0.5)
    producer.submit(id="a", prompt="x")
    reader = Reader(producer.follow("a"))
    worker.claim()
    end = time.monotonic() + 3
    while time.monotonic() < end:
        cut_subscribers(redis_client)
        time.sleep(0.01)
    assert reader.is_alive()
    worker.finish("a", "")
    assert_whole(reader.all(), "")


def test_two_readers_get_the_same(producer, server, queue, worker):
    producer.submit(id="a", prompt="x")
    with Producer(server.url, queue) as other:
        readers = [Reader(producer.follow("a")), Reader(other.follow("a"))]
        worker.claim()
        worker.tokens("a", "a ", "b")
        worker.finish("a", "a b")
        first, second = (reader.all() for reader in readers)
    assert_whole(first, "a b")
    assert first == second


def test_a_slow_reader_gets_all(producer, worker):
    producer.submit(id="a", prompt="x")
    events = producer.follow("a")
    seen = [next(events)]
    worker.claim()
    words = [f"{i} " for i in range(50)]
    worker.tokens("a", *words)
    seen.append(next(events))
    worker.finish("a", "".join(words))
    assert_whole([*seen, *events], "".join(words))


def test_many_jobs_over_one_subscription(producer, worker):
    ids = producer.submit_many({"id": f"j{i}", "prompt": str(i)} for i in range(20))
    reader = Reader(producer.follow_many(ids))
    reader.wait_for(20)
    for job_id in ids:
        worker.claim()
        worker.tokens(job_id, job_id, "!")
    for job_id in reversed(ids):
        worker.finish(job_id, f"{job_id}!")
    events = sorted(reader.all(), key=lambda event: event.job)
    for job_id, story in itertools.groupby(events, key=lambda event: event.job):
        assert_whole(list(story), f"{job_id}!")


@pytest.mark.parametrize("code", ["media_invalid", "too_large"])
def test_a_failure_ends_the_story(producer, worker, code):
    producer.submit(id="a", prompt="x")
    worker.claim()
    worker.fail("a", code, "no good")
    *_, last = producer.follow("a")
    assert (last.type, last.code, last.message) == ("failed", code, "no good")


def test_events_gone_by_ttl_leave_the_end_from_the_result(producer, worker, redis_client, queue):
    for job_id in ("a", "b", "c"):
        producer.submit(id=job_id, prompt="x")
        worker.claim()
    worker.finish("a", "text")
    worker.fail("b", "media_invalid", "no good")
    worker.finish("c", "text")
    redis_client.delete(*(Keys(queue).events(job_id) for job_id in ("a", "b")))
    redis_client.delete(Keys(queue).events("c"), Keys(queue).job("c"))
    [end] = producer.follow("a")
    assert (end.type, end.text, end.seq) == ("finished", "text", 2)
    [end] = producer.follow("b")
    assert (end.type, end.code, end.message) == ("failed", "media_invalid", "no good")
    [end] = producer.follow("c")
    assert end.type == "finished"
    assert list(producer.follow("a", from_seq=3)) == []


def test_all_gone_by_ttl_is_said(producer, worker, redis_client, queue):
    producer.submit(id="a", prompt="x")
    worker.claim()
    worker.finish("a", "text")
    redis_client.delete(Keys(queue).events("a"), Keys(queue).result("a"))
    with pytest.raises(Expired, match="job a"):
        list(producer.follow("a"))
    with pytest.raises(Expired, match="job a"):
        producer.result("a")


def test_a_job_that_vanishes_under_its_reader_is_said(producer, redis_client, queue):
    producer.submit(id="a", prompt="x")
    reader = Reader(producer.follow("a"))
    reader.wait_for(1)
    redis_client.delete(*redis_client.scan_iter(f"{Keys(queue).prefix}:*"))
    with pytest.raises(Expired):
        reader.all()


def test_an_unknown_job_is_an_error_unless_waited_for(producer, worker, redis_client, queue):
    with pytest.raises(UnknownJob, match="no job a"):
        list(producer.follow("a"))
    reader = Reader(producer.follow("a", wait_for_job=True))
    until(lambda: subscribers(redis_client, queue, "a"))
    producer.submit(id="a", prompt="x")
    worker.claim()
    worker.finish("a", "")
    assert_whole(reader.all(), "")
    with pytest.raises(InvalidJob):
        producer.follow("a b")


def test_a_job_pushed_by_hand_is_followed_like_any_other(producer, worker, redis_client, queue):
    redis_client.hset(Keys(queue).job("a"), "spec", '{"prompt": "x"}')
    redis_client.xadd(Keys(queue).jobs(), {"id": "a"})
    reader = Reader(producer.follow("a"))
    until(lambda: subscribers(redis_client, queue, "a"))
    worker.claim()
    worker.tokens("a", "text")
    worker.finish("a", "text")
    assert_whole(reader.all(), "text")


def test_following_stops_at_its_timeout(producer):
    producer.submit(id="a", prompt="x")
    with pytest.raises(WaitTimeout, match="a"):
        list(producer.follow("a", timeout=0.05))


def test_an_abandoned_reader_leaves_no_subscription(producer, redis_client, queue):
    producer.submit(id="a", prompt="x")
    events: Any = producer.follow("a")
    next(events)
    assert subscribers(redis_client, queue, "a") == 1
    events.close()
    until(lambda: subscribers(redis_client, queue, "a") == 0)


async def _follow_async(url: str, queue: str, started: threading.Event) -> list[Event]:
    async with AsyncProducer(url, queue) as producer:
        await producer.submit(id="a", prompt="x")
        events: list[Event] = []
        async for event in producer.follow("a"):
            events.append(event)
            started.set()
        assert (await producer.result("a")).text == events[-1].text
        return events


def test_the_async_reader_does_the_same(server, queue, worker, redis_client):
    started = threading.Event()
    stories: list[list[Event]] = []
    runner = threading.Thread(
        target=lambda: stories.append(asyncio.run(_follow_async(server.url, queue, started)))
    )
    runner.start()
    assert started.wait(30)
    worker.claim()
    worker.tokens("a", "a ")
    cut_subscribers(redis_client)
    worker.tokens("a", "b ")
    worker.lose_messages("a", "c")
    worker.finish("a", "a b c")
    runner.join(30)
    assert_whole(stories[0], "a b c")


def test_another_job_under_the_id_is_not_read_as_its_sequel(producer, worker, redis_client, queue):
    """Also where its numbers begin above those that were read."""
    job_id = producer.submit(id="a", prompt="hi")
    worker.claim()
    worker.tokens(job_id, "old")
    reader = Reader(producer.follow(job_id))
    reader.wait_for(3)
    redis_client.delete(*redis_client.keys(f"{Keys(queue).prefix}:*"))
    producer.submit(id="a", prompt="another")
    worker.claim()
    worker.tokens(job_id, *"newer")
    worker.finish(job_id, "newer")
    with pytest.raises(Expired, match="another job was submitted under the id a"):
        reader.all()
    assert_whole(list(producer.follow(job_id)), "newer")


def test_what_others_publish_on_the_channel_ends_nothing(producer, worker, redis_client, queue):
    job_id = producer.submit(prompt="hi")
    worker.claim()
    reader = Reader(producer.follow(job_id))
    reader.wait_for(2)
    redis_client.publish(Keys(queue).tokens(job_id), b"garbage")
    worker.tokens(job_id, "a", "b")
    worker.finish(job_id, "ab")
    assert_whole(reader.all(), "ab")
