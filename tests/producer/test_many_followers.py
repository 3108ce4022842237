"""Hundreds who follow at once with one client: one connection hears for all."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
import redis.asyncio

from mlxq_producer import AsyncProducer, Producer, async_channels, following
from mlxq_schemas import Event, Keys
from mlxq_schemas.errors import MlxqError, QueueError, QueueUnavailable
from tcp_proxy import TcpProxy

MANY = 300
WORDS = ("one ", "two ", "three")
TEXT = "".join(WORDS)


@pytest.fixture
def never_polls(monkeypatch) -> None:
    monkeypatch.setattr(following, "POLL_SECONDS", 1000.0)


async def told(condition: Callable[[], object]) -> None:
    """Wait until ``condition`` holds; it may ask the server."""
    async with asyncio.timeout(120):
        while not await asyncio.to_thread(condition):  # noqa: ASYNC110 - the server is asked
            await asyncio.sleep(0.01)


async def read(events: Any) -> list[Event]:
    return [event async for event in events]


def assert_whole(events: list[Event]) -> None:
    assert [event.seq for event in events] == list(range(len(events)))
    assert events[-1].type == "finished"
    assert "".join(event.text for event in events if event.type == "token") == TEXT


def heard(client: redis.Redis, queue: str, ids: list[str]) -> int:
    """How many of the jobs' channels somebody listens to."""
    names = [Keys(queue).tokens(job_id) for job_id in ids]
    return sum(count > 0 for _, count in client.pubsub_numsub(*names))


def lines(client: redis.Redis) -> tuple[int, int]:
    """Connections to the server: of subscribers, and all."""
    rows: list[Any] = client.client_list()
    return sum("P" in row["flags"] for row in rows), len(rows)


def do(worker: Any, ids: list[str]) -> None:
    for _ in ids:
        worker.claim()
    for word in WORDS:
        for job_id in ids:
            worker.tokens(job_id, word)
    for job_id in ids:
        worker.finish(job_id, TEXT)


def many(producer: Producer, count: int = MANY) -> list[str]:
    return producer.submit_many({"id": f"j{i}", "prompt": "p"} for i in range(count))


@pytest.mark.usefixtures("never_polls")
def test_one_connection_hears_for_all(server, queue, producer, worker, redis_client) -> None:
    ids = many(producer)
    before = lines(redis_client)

    async def follow() -> list[list[Event]]:
        async with AsyncProducer(server.url, queue) as reader:
            tasks = [asyncio.create_task(read(reader.follow(job_id))) for job_id in ids]
            await told(lambda: heard(redis_client, queue, ids) == MANY)
            subscribers, total = lines(redis_client)
            assert subscribers - before[0] == 1
            assert total - before[1] <= 1 + 16
            await asyncio.to_thread(do, worker, ids)
            stories = await asyncio.gather(*tasks)
            await told(lambda: lines(redis_client)[0] == before[0])
            return stories

    for story in asyncio.run(follow()):
        assert_whole(story)


def test_all_hear_all_while_connections_are_cut(
    server, queue, producer, worker, redis_client
) -> None:
    ids, over = many(producer), threading.Event()

    def cut() -> None:
        while not over.wait(0.3):
            redis_client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")

    async def follow() -> list[list[Event]]:
        async with AsyncProducer(server.url, queue) as reader:
            tasks = [asyncio.create_task(read(reader.follow(job_id))) for job_id in ids]
            await asyncio.sleep(1)
            await asyncio.to_thread(do, worker, ids)
            await asyncio.sleep(1)
            over.set()
            return await asyncio.gather(*tasks)

    cutter = threading.Thread(target=cut)
    cutter.start()
    try:
        for story in asyncio.run(follow()):
            assert_whole(story)
    finally:
        over.set()
        cutter.join()


def test_who_leaves_disturbs_nobody(server, queue, producer, worker, redis_client) -> None:
    """Cancelled early, late, in the middle of a subscription; the same job is read by several."""
    ids = many(producer, 40)

    async def follow() -> list[list[Event]]:
        async with AsyncProducer(server.url, queue) as reader:
            stay = [asyncio.create_task(read(reader.follow(job_id))) for job_id in ids * 2]
            await told(lambda: heard(redis_client, queue, ids) == len(ids))
            line = reader._heard()._line
            for turn in range(30):
                leave = [asyncio.create_task(read(reader.follow(job_id))) for job_id in ids]
                for _ in range(turn):
                    await asyncio.sleep(0)
                for task in leave:
                    task.cancel()
                await asyncio.gather(*leave, return_exceptions=True)
            assert reader._heard()._line is line
            await asyncio.to_thread(do, worker, ids)
            return await asyncio.gather(*stay)

    for story in asyncio.run(follow()):
        assert_whole(story)


@pytest.mark.usefixtures("never_polls")
def test_a_channel_that_one_leaves_and_another_enters_is_heard(
    server, queue, producer, worker, redis_client
) -> None:
    [other, job_id] = many(producer, 2)

    async def follow() -> list[Event]:
        async with AsyncProducer(server.url, queue) as reader:
            stays = asyncio.create_task(read(reader.follow(other)))
            for _ in range(200):
                leaves: Any = reader.follow(job_id)
                await anext(leaves)
                closing = asyncio.create_task(leaves.aclose())
                story: Any = reader.follow(job_id)
                first = [await anext(story)]
                await closing
                assert heard(redis_client, queue, [job_id]) == 1
                await story.aclose()
            story = reader.follow(job_id)
            first = [await anext(story)]
            await asyncio.to_thread(do, worker, [other, job_id])
            assert_whole(await stays)
            return first + [event async for event in story]

    assert_whole(asyncio.run(follow()))


@pytest.mark.usefixtures("never_polls")
def test_a_slow_reader_loses_nothing_and_holds_up_nobody(
    server, queue, producer, worker, redis_client, monkeypatch
) -> None:
    monkeypatch.setattr(async_channels, "BUFFER", 5)
    [slow, quick] = many(producer, 2)

    async def follow() -> list[list[Event]]:
        async with AsyncProducer(server.url, queue) as reader:
            events: Any = reader.follow(slow)
            first = [await anext(events)]
            other = asyncio.create_task(read(reader.follow(quick)))
            await told(lambda: heard(redis_client, queue, [slow, quick]) == 2)
            for _ in range(2):
                await asyncio.to_thread(worker.claim)
            await asyncio.to_thread(worker.tokens, slow, *[""] * 50)
            await asyncio.to_thread(worker.tokens, quick, *WORDS)
            await asyncio.to_thread(worker.finish, quick, TEXT)
            whole = await other
            await asyncio.to_thread(worker.tokens, slow, *WORDS)
            await asyncio.to_thread(worker.finish, slow, TEXT)
            return [whole, first + [event async for event in events]]

    for story in asyncio.run(follow()):
        assert_whole(story)


def test_who_follows_while_the_producer_is_closed_hears_it(server, queue, producer) -> None:
    [job_id] = many(producer, 1)

    async def follow() -> None:
        reader = AsyncProducer(server.url, queue)
        events: Any = reader.follow(job_id)
        await anext(events)
        waiting = asyncio.create_task(anext(events))
        await asyncio.sleep(0.1)
        await reader.close()
        with pytest.raises(QueueError, match="closed"):
            await waiting
        with pytest.raises(QueueError, match="closed"):
            await anext(reader.follow(job_id))

    asyncio.run(follow())


@pytest.mark.parametrize("seconds", [0.0, 0.02, 0.1, 0.4, 1.0])
def test_a_producer_that_is_closed_in_use_leaves_no_connection(
    server, queue, producer, redis_client, seconds
) -> None:
    ids = many(producer)
    before = lines(redis_client)[1]

    async def follow() -> None:
        reader = AsyncProducer(server.url, queue)
        tasks = [asyncio.create_task(read(reader.follow(job_id))) for job_id in ids]
        await asyncio.sleep(seconds)
        await reader.close()
        said = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(error) for error in said} == {QueueError}
        await told(lambda: lines(redis_client)[1] <= before)
        with pytest.raises(QueueError, match="closed"):
            await reader.submit(prompt="p")
        assert lines(redis_client)[1] <= before

    asyncio.run(follow())


def test_one_producer_in_two_event_loops(server, queue, producer, worker) -> None:
    ids = many(producer, 2)
    do(worker, ids)
    pool = redis.asyncio.ConnectionPool.from_url(server.url)
    reader = AsyncProducer(server.url, queue, client=redis.asyncio.Redis(connection_pool=pool))

    async def follow(job_id: str) -> list[Event]:
        try:
            return await read(reader.follow(job_id))
        finally:
            await pool.disconnect()

    for job_id in ids:
        assert_whole(asyncio.run(follow(job_id)))


def test_a_small_pool_of_the_callers_is_named(server, queue) -> None:
    async def submit() -> list[Any]:
        client = redis.asyncio.Redis.from_url(server.url, max_connections=2)
        async with client, AsyncProducer(queue=queue, client=client) as reader:
            tasks = [reader.submit(prompt="p") for _ in range(50)]
            return await asyncio.gather(*tasks, return_exceptions=True)

    said = [error for error in asyncio.run(submit()) if isinstance(error, QueueUnavailable)]
    assert said
    assert "max_connections" in str(said[0])


@pytest.mark.usefixtures("never_polls")
def test_a_silent_link_is_found_out(server, queue, producer, worker, monkeypatch) -> None:
    """Nothing says that a connection is dead whose other end has vanished."""
    monkeypatch.setattr(async_channels, "QUIET", 0.2)
    [job_id] = many(producer, 1)
    with TcpProxy(server.url) as link:

        async def follow() -> list[Event]:
            async with AsyncProducer(link.url, queue) as reader:
                story: Any = reader.follow(job_id)
                first = [await anext(story)]
                rest = asyncio.create_task(read(story))
                await asyncio.sleep(0.5)
                link.delay("PING", 60)
                channels = reader._heard()
                line = channels._line
                await told(lambda: channels._line is not line)
                await asyncio.to_thread(do, worker, [job_id])
                return first + await rest

        assert_whole(asyncio.run(follow()))


def test_threads_that_follow_have_a_connection_each(producer, worker) -> None:
    ids = many(producer, 150)
    stories: list[list[Event]] = []
    errors: list[MlxqError] = []

    def follow(events: Iterator[Event]) -> None:
        try:
            stories.append(list(events))
        except MlxqError as error:
            errors.append(error)

    threads = [threading.Thread(target=follow, args=(producer.follow(i),)) for i in ids]
    for thread in threads:
        thread.start()
    do(worker, ids)
    for thread in threads:
        thread.join(120)
    assert not errors
    assert len(stories) == len(ids)
    for story in stories:
        assert_whole(story)
