"""Taking over entries whose lease has run out."""

from __future__ import annotations

from collections.abc import Sequence

import redis

from lua_worker import LuaWorker
from mlxq_schemas import GROUP, Job
from mlxq_worker.queue.entry import Entry
from mlxq_worker.queue.link import Link
from mlxq_worker.queue.reclaim import Reclaimer

LONG = 3_600_000


class Sweeper:
    def __init__(self, link: Link, other: LuaWorker, room: int = 10) -> None:
        self.free = room
        self.taken: list[Entry] = []
        self.reclaimer = Reclaimer(
            link, other.keys, "w", lease=60, period=15, room=lambda: self.free, take=self.take
        )

    def take(self, entries: Sequence[Entry]) -> None:
        self.taken += entries
        self.free -= len(entries)

    @property
    def ids(self) -> list[str | None]:
        return [entry.job_id for entry in self.taken]


def expire(client: redis.Redis, other: LuaWorker, *entries: bytes) -> None:
    """Make the leases of entries run out."""
    client.xclaim(other.keys.jobs(), GROUP, "other", 0, list(entries), idle=LONG, justid=True)


def test_one_dead_entry_behind_many_live_ones_is_found(
    link: Link, other: LuaWorker, redis_client: redis.Redis
) -> None:
    for i in range(200):
        other.submit(Job(id=f"j{i}", prompt="p"))
    rows = other.read(200)
    expire(redis_client, other, rows[-1][0])
    sweeper = Sweeper(link, other, room=1)
    assert sweeper.reclaimer.step() == 15
    assert sweeper.ids == ["j199"]
    assert sweeper.taken[0].taken_over


def test_it_takes_no_more_than_fit_and_goes_on_there(
    link: Link, other: LuaWorker, redis_client: redis.Redis
) -> None:
    for i in range(6):
        other.submit(Job(id=f"j{i}", prompt="p"))
    expire(redis_client, other, *(entry for entry, _ in other.read(6)))
    sweeper = Sweeper(link, other, room=2)
    sweeper.reclaimer.step()
    assert sweeper.ids == ["j0", "j1"]
    sweeper.reclaimer.step()
    assert len(sweeper.taken) == 2
    sweeper.free = 10
    sweeper.reclaimer.step()
    assert sorted(map(str, sweeper.ids)) == [f"j{i}" for i in range(6)]


def test_no_stream_no_error(link: Link, other: LuaWorker) -> None:
    sweeper = Sweeper(link, other)
    sweeper.reclaimer.step()
    assert sweeper.taken == []
