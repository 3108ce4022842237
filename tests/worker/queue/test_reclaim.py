"""Taking over entries whose lease has run out."""

from __future__ import annotations

import time
from collections.abc import Sequence

import redis

from lua_worker import LuaWorker
from mlxq_schemas import GROUP, Job
from mlxq_schemas.clock import seconds_of
from mlxq_worker.queue import reclaim as module
from mlxq_worker.queue.entry import Entry
from mlxq_worker.queue.link import Link
from mlxq_worker.queue.reclaim import Reclaimer
from mlxq_worker.queue.standstill import Moment, Standstill
from worker_process import eventually

LONG = 3_600_000


class Sweeper:
    def __init__(self, link: Link, other: LuaWorker, room: int = 10, lease: float = 60) -> None:
        self.free = room
        self.taken: list[Entry] = []
        witnessed(other)
        self.standstill = Standstill(lease / 2)
        self.reclaimer = Reclaimer(
            link,
            other.keys,
            "w",
            lease=lease,
            period=15,
            room=lambda: self.free,
            take=self.take,
            standstill=self.standstill,
        )

    def take(self, entries: Sequence[Entry]) -> None:
        self.taken += entries
        self.free -= len(entries)

    @property
    def ids(self) -> list[str | None]:
        return [entry.job_id for entry in self.taken]


def witnessed(other: LuaWorker) -> None:
    """Somebody has reached the server all the time until now."""
    now = seconds_of(other.client.time())
    other.client.hset(other.keys.beats, mapping={"last": now, "lease": 1000, "gaps": "[]"})
    other.client.expire(other.keys.beats, 60)


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
    assert sweeper.taken[0].how == "over"


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


def test_after_an_outage_owners_may_renew_first(
    link: Link, other: LuaWorker, redis_client: redis.Redis
) -> None:
    """Whoever sweeps, also a worker that starts just then: nobody reached the server."""
    for name in ("silent", "back"):
        other.submit(Job(id=name, prompt="p"))
    (silent, _), (back, _) = other.read(2)
    sweeper = Sweeper(link, other, lease=0.5)
    redis_client.hincrbyfloat(other.keys.beats, "last", -3600)
    expire(redis_client, other, silent, back)
    assert other.hand_back("back", other.claim("back", back)[1], back) == 1
    sweeper.reclaimer.step()
    assert sweeper.ids == ["back"]
    eventually(lambda: sweeper.reclaimer.step() and "silent" in sweeper.ids)


def test_reconnects_of_the_sweeper_are_no_grace(
    link: Link, other: LuaWorker, redis_client: redis.Redis
) -> None:
    other.submit(Job(id="a", prompt="p"))
    expire(redis_client, other, other.read()[0][0])
    sweeper = Sweeper(link, other)
    redis_client.delete(other.keys.jobs("high"), other.keys.jobs("low"))
    link.open()
    link.close()
    sweeper.reclaimer.step()
    assert sweeper.ids == ["a"]


def test_no_stream_no_error(link: Link, other: LuaWorker) -> None:
    sweeper = Sweeper(link, other)
    sweeper.reclaimer.step()
    assert sweeper.taken == []


def test_one_worker_sweeps_at_a_time(
    link: Link, other: LuaWorker, redis_client: redis.Redis
) -> None:
    other.submit(Job(id="a", prompt="p"))
    expire(redis_client, other, other.read()[0][0])
    sweeper = Sweeper(link, other)
    redis_client.set(other.keys.sweeper, "another", px=60_000)
    assert sweeper.reclaimer.step() == module.SHORT_PAUSE
    assert sweeper.ids == []
    assert redis_client.get(other.keys.sweeper) == b"another"
    redis_client.delete(other.keys.sweeper)
    assert sweeper.reclaimer.step() == 15
    assert sweeper.ids == ["a"]
    assert not redis_client.exists(other.keys.sweeper)


def test_the_lock_of_a_sweeper_that_dies_runs_out(
    link: Link, other: LuaWorker, redis_client: redis.Redis
) -> None:
    other.submit(Job(id="a", prompt="p"))
    expire(redis_client, other, other.read()[0][0])
    left: list[int] = []

    def take(_: Sequence[Entry]) -> None:
        left.append(redis_client.pttl(other.keys.sweeper))

    witnessed(other)
    sweeper = Sweeper(link, other)
    sweeper.reclaimer._take = take
    sweeper.reclaimer.step()
    assert 0 < left[0] <= module.LOCK_MS


def test_a_worker_without_room_leaves_the_sweep_to_others(
    link: Link, other: LuaWorker, redis_client: redis.Redis
) -> None:
    sweeper = Sweeper(link, other, room=0)
    redis_client.set(other.keys.sweeper, "another", px=60_000)
    assert sweeper.reclaimer.step() == 15


def test_a_sweep_that_began_in_the_middle_goes_all_the_way_round(
    link: Link, other: LuaWorker, redis_client: redis.Redis
) -> None:
    for i in range(40):
        other.submit(Job(id=f"j{i}", prompt="p"))
    entries = [entry for entry, _ in other.read(40)]
    expire(redis_client, other, entries[20])
    sweeper = Sweeper(link, other, room=1)
    sweeper.reclaimer.step()
    expire(redis_client, other, entries[0])
    sweeper.free = 1
    sweeper.reclaimer.step()
    assert sweeper.ids == ["j20", "j0"]


def test_who_slept_renews_before_it_takes_over(
    link: Link, other: LuaWorker, redis_client: redis.Redis
) -> None:
    other.submit(Job(id="a", prompt="p"))
    expire(redis_client, other, other.read()[0][0])
    sweeper = Sweeper(link, other)
    clocks = [Moment(time.time(), time.monotonic(), 0.0)]
    sweeper.standstill.__init__(30, lambda: clocks[-1])
    clocks.append(clocks[0]._replace(wall=clocks[0].wall + 3600))
    assert sweeper.reclaimer.step() == module.SHORT_PAUSE
    assert sweeper.ids == []
    sweeper.standstill.told(sweeper.standstill.look())
    assert sweeper.reclaimer.step() == 15
    assert sweeper.ids == ["a"]
