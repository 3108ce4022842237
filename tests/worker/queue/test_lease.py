"""Renewing leases, and hearing of lost ones."""

from __future__ import annotations

import pytest
import redis

from lua_worker import LuaWorker
from mlxq_schemas import GROUP, Job
from mlxq_worker.queue.entry import Entry
from mlxq_worker.queue.lease import LeaseKeeper
from mlxq_worker.queue.link import Link
from mlxq_worker.queue.standstill import Moment, Standstill


def make(link: Link, other: LuaWorker, held: list[Entry], lost: list[Entry]) -> LeaseKeeper:
    return LeaseKeeper(
        link,
        other.keys,
        "other",
        lease=20.0,
        held=lambda: held,
        on_lost=lost.append,
        standstill=Standstill(10.0),
    )


def taken(other: LuaWorker, *names: str) -> list[Entry]:
    for name in names:
        other.submit(Job(id=name, prompt="p"))
    rows = other.read(len(names))
    return [Entry(other.keys.jobs(), entry.decode(), name) for entry, name in rows]


def test_renewing_resets_the_idle_time_and_counts_no_delivery(
    link: Link, other: LuaWorker, redis_client: redis.Redis
) -> None:
    held, lost = taken(other, "a", "b"), list[Entry]()
    long, names = 3_600_000, [entry.id for entry in held]
    redis_client.xclaim(other.keys.jobs(), GROUP, other.name, 0, names, idle=long, justid=True)
    assert make(link, other, held, lost).step() == 5.0
    rows = redis_client.xpending_range(other.keys.jobs(), GROUP, "-", "+", 10)
    assert all(row["time_since_delivered"] < long for row in rows)
    assert [row["times_delivered"] for row in rows] == [1, 1]
    assert lost == []


def test_an_entry_of_another_worker_is_lost_and_not_stolen_back(
    link: Link, other: LuaWorker, redis_client: redis.Redis
) -> None:
    held, lost = taken(other, "a", "b"), list[Entry]()
    redis_client.xclaim(other.keys.jobs(), GROUP, "thief", 0, [held[0].id])
    make(link, other, held, lost).step()
    assert lost == [held[0]]
    rows = redis_client.xpending_range(other.keys.jobs(), GROUP, "-", "+", 10)
    assert [row["consumer"] for row in rows] == [b"thief", b"other"]


def test_after_flushall_all_are_lost(
    link: Link, other: LuaWorker, redis_client: redis.Redis
) -> None:
    held, lost = taken(other, "a", "b"), list[Entry]()
    redis_client.delete(*redis_client.keys(f"{other.keys.prefix}:*"))
    make(link, other, held, lost).step()
    assert lost == held


def test_a_beat_is_left_where_nothing_is_in_flight(
    link: Link, other: LuaWorker, redis_client: redis.Redis
) -> None:
    make(link, other, [], []).step()
    assert redis_client.hget(other.keys.beats, "lease") == b"20"
    assert 0 < redis_client.ttl(other.keys.beats) <= 86400


def test_a_sleep_is_told_and_logged_once_when_the_queue_knows(
    link: Link, other: LuaWorker, redis_client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """A machine that wakes without its network looks at its clocks each second."""
    clocks = [Moment(1e9, 50.0, 0.0), Moment(1e9 + 3600, 51.0, 0.0)]
    standstill = Standstill(10.0, lambda: clocks.pop(0) if len(clocks) > 1 else clocks[0])
    keeper = LeaseKeeper(
        link,
        other.keys,
        "other",
        lease=20.0,
        held=list,
        on_lost=lambda _: None,
        standstill=standstill,
    )
    for _ in range(3):
        assert standstill.look() > 0
    assert caplog.text == ""
    keeper.step()
    assert standstill.look() == 0
    keeper.step()
    assert caplog.text.count("stood still") == 1
    assert redis_client.hexists(other.keys.beats, "woke")
