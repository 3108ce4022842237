"""Steps and checks that the tests of all sites share."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from mlxq_producer import Producer
from mlxq_schemas import DEFAULT_QUEUE, Event, Keys
from topologies.sites import Site
from worker_process import PATIENCE

KEYS = Keys(DEFAULT_QUEUE)


def check(site: Site, texts: dict[str, str], queue: str = DEFAULT_QUEUE) -> None:
    """Every job ended once, with all of its text and no gap; nothing is left of the queue."""
    party = "reader" if queue == DEFAULT_QUEUE else "admin"
    with Producer(site.url(party), queue) as reader:
        for job_id, text in texts.items():
            assert_whole(reader.follow(job_id, timeout=PATIENCE), text)
            assert reader.result(job_id).text == text
    with site.admin(queue) as client:
        assert sum(client.xlen(stream) for stream in Keys(queue).all_jobs()) == 0


def assert_whole(events: Iterable[Event], text: str) -> None:
    told = list(events)
    assert [event.seq for event in told] == list(range(len(told)))
    assert [event.type for event in told].count("finished") == 1
    assert "".join(event.text for event in told if event.type == "token") == text


def submit(producer: Producer, count: int, length: int = 20, name: str = "j") -> dict[str, str]:
    texts = {f"{name}{i}": f"{i}:" + "abcdefghij" * (length // 10) for i in range(count)}
    producer.submit_many({"id": i, "prompt": t, "max_tokens": 9999} for i, t in texts.items())
    return texts


def token_seen(producer: Producer, job_id: str) -> None:
    """Wait for the first text of a job."""
    for event in producer.follow(job_id, timeout=PATIENCE):
        if event.type == "token":
            return
    pytest.fail(f"{job_id} ended without a token")
