"""Deaths that are taken back: whose owner only slept."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from lua_worker import LuaWorker
from mlxq_schemas import Job


@pytest.fixture
def worker(redis_client: redis.Redis, queue: str) -> LuaWorker:
    return LuaWorker(redis_client, queue)


@pytest.fixture
def others(redis_client: redis.Redis, queue: str) -> list[LuaWorker]:
    return [LuaWorker(redis_client, queue, f"w{i}") for i in range(2, 6)]


def take(worker: LuaWorker) -> tuple[bytes, int]:
    worker.submit(Job(id="x", prompt="p"))
    [(entry, _)] = worker.read()
    return entry, worker.claim("x", entry)[1]


def over(other: LuaWorker, entry: bytes) -> Any:
    """word, epoch and deaths of a job that is taken over."""
    word, epoch, _, deaths, *_ = other.claim("x", entry, "over")
    return word, epoch, int(deaths)


def deaths(worker: LuaWorker) -> bytes:
    return worker.client.hget(worker.keys.job("x"), "deaths")


def test_each_owner_takes_back_its_own_death_once(
    worker: LuaWorker, others: list[LuaWorker]
) -> None:
    entry, first = take(worker)
    _, second, _ = over(others[0], entry)
    word, third, count = over(others[1], entry)
    assert (word, count) == (b"alone", 2)
    assert worker.alive("x", first) == 1
    assert deaths(worker) == b"1"
    assert worker.alive("x", first) == 0
    assert deaths(worker) == b"1"
    assert others[0].alive("x", second) == 1
    assert deaths(worker) == b"0"
    # The third lease is held: its owner asks too early, and its next loss will not count.
    assert others[1].alive("x", third) == 1
    assert over(others[2], entry)[2] == 0


def test_a_lease_that_was_taken_but_not_claimed_yet_counts_no_death(
    worker: LuaWorker, others: list[LuaWorker]
) -> None:
    entry, epoch = take(worker)
    assert worker.alive("x", epoch) == 1
    word, _, count = over(others[0], entry)
    assert (word, count) == (b"ok", 0)
    assert over(others[1], entry)[2] == 1


def test_what_was_no_death_is_not_taken_back(worker: LuaWorker, others: list[LuaWorker]) -> None:
    entry, epoch = take(worker)
    worker.hand_back("x", epoch, entry)
    _, second, count = over(others[0], entry)
    assert count == 0
    assert over(others[1], entry)[2] == 1
    assert worker.alive("x", epoch) == 0
    assert deaths(worker) == b"1"
    assert others[0].alive("x", second) == 1
    assert worker.alive("unknown", epoch) == 0


def test_a_former_life_takes_nothing_back(worker: LuaWorker, others: list[LuaWorker]) -> None:
    entry, epoch = take(worker)
    over(others[0], entry)
    worker.client.delete(*worker.client.keys(f"{worker.keys.prefix}:*"))
    entry, _ = take(worker)
    over(others[0], entry)
    assert worker.alive("x", epoch) == 0
    assert deaths(worker) == b"1"


@pytest.mark.parametrize(
    ("name", "value"),
    [("deaths", "many"), ("deaths", "0"), ("mourned", "x" * 5000), ("mourned", "")],
    ids=["no count", "too few", "long", "empty"],
)
def test_hand_written_counts_break_nothing(
    worker: LuaWorker, others: list[LuaWorker], name: str, value: str
) -> None:
    entry, epoch = take(worker)
    over(others[0], entry)
    worker.client.hset(worker.keys.job("x"), name, value)
    assert worker.alive("x", epoch) in {0, 1}
    assert over(others[1], entry)[0] in {b"ok", b"alone"}


def test_another_type_under_the_name_of_a_job_is_nobodys_death(worker: LuaWorker) -> None:
    _, epoch = take(worker)
    worker.client.delete(worker.keys.job("x"))
    worker.client.set(worker.keys.job("x"), "a string")
    assert worker.alive("x", epoch) == 0
    worker.client.delete(worker.keys.job("x"), worker.keys.events("x"))
