"""Jobs without end through a bounded window, blocking and with asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from answering_worker import AnsweringWorker
from mlxq_producer import AsyncProducer, Producer
from mlxq_schemas import Keys
from mlxq_schemas.errors import Conflict


def prompts(count: int) -> Iterator[dict[str, Any]]:
    for number in range(count):
        yield {"prompt": f"p{number}"}


def test_results_come_in_the_order_of_the_jobs(server, queue, worker):
    with Producer(server.url, queue) as producer:
        found = [result.text for result in producer.map(prompts(300), window=16)]
    assert found == [f"p{number}" for number in range(300)]
    assert worker.most_waiting <= 16


def test_jobs_are_read_as_results_come(server, queue, worker):
    read = 0

    def counted() -> Iterator[dict[str, Any]]:
        nonlocal read
        for job in prompts(1000):
            read += 1
            yield job

    with Producer(server.url, queue) as producer:
        results = producer.map(counted(), window=8)
        next(results)
        assert read <= 16


def test_a_refused_job_has_a_result_and_stops_no_other(server, queue, worker):
    jobs = [{"prompt": "a"}, {"prompt": ""}, {"prompt": "b", "nonsense": 1}, {"prompt": "c"}]
    with Producer(server.url, queue) as producer:
        found = [(r.text, r.code) for r in producer.map(jobs)]
        assert found == [("a", None), ("", "empty_prompt"), ("", "unsupported"), ("c", None)]
        with pytest.raises(Conflict, match="twice"):
            list(producer.map([{"id": "x", "prompt": "a"}, {"id": "x", "prompt": "a"}]))


def test_a_full_queue_is_waited_for(server, queue, worker):
    with Producer(server.url, queue, max_depth=2) as producer:
        results = producer.map(prompts(12), window=8, ordered=False)
        assert sorted(r.text for r in results) == sorted(f"p{n}" for n in range(12))


def test_jobs_that_the_server_lost_are_sent_again(server, queue, redis_client):
    keys = Keys(queue)
    with ExitStack() as stack:
        producer = stack.enter_context(Producer(server.url, queue))
        workers: list[AnsweringWorker] = []

        def lose() -> None:
            """Once all jobs are sent, the server forgets them; only then comes a worker."""
            if not workers and len(redis_client.keys(keys.job("*"))) == 3:
                redis_client.delete(*redis_client.keys(f"{keys.prefix}:*"))
                workers.append(stack.enter_context(AnsweringWorker(server.url, queue)))

        assert [r.text for r in producer.map(prompts(3), check=lose)] == ["p0", "p1", "p2"]


def test_asyncio(server, queue, worker):
    async def run() -> list[str]:
        async with AsyncProducer(server.url, queue) as producer:
            return [r.text async for r in producer.map(prompts(40), window=8)]

    assert asyncio.run(run()) == [f"p{number}" for number in range(40)]
