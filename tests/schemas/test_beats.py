"""Whose lease has run out: only time in which somebody reached the server counts."""

from __future__ import annotations

import json

import pytest
import redis

from lua_worker import LuaWorker
from mlxq_schemas.clock import seconds_of

LEASE = 60.0
FULL = 60_000
"""A whole lease, in milliseconds."""


@pytest.fixture
def worker(redis_client: redis.Redis, queue: str) -> LuaWorker:
    return LuaWorker(redis_client, queue)


def past(worker: LuaWorker, last: float, *gaps: tuple[float, float], lease: float = LEASE) -> None:
    """The beats so far; times are in seconds before now."""
    now = seconds_of(worker.client.time())
    kept = json.dumps([[now - begin, now - end] for begin, end in gaps])
    known = {"last": now - last, "lease": lease, "gaps": kept}
    worker.client.hset(worker.keys.beats, mapping=known)


def test_a_full_lease_of_beats_is_enough(worker: LuaWorker) -> None:
    past(worker, 15)
    assert worker.beat(LEASE) == FULL


@pytest.mark.parametrize("known", [True, False])
def test_the_first_beat_ever_says_nothing(worker: LuaWorker, known: bool) -> None:
    if known:
        past(worker, -3600)  # the server's clock went back
    assert worker.beat(LEASE) == -1
    assert worker.beat(LEASE) == -1


def test_after_one_lease_of_own_beats_the_silent_are_dead(worker: LuaWorker) -> None:
    ever = seconds_of(worker.client.time())
    past(worker, 15, (ever, 61))
    assert worker.beat(LEASE) == FULL
    past(worker, 15, (ever + 60, 50))
    assert worker.beat(LEASE) == -1


def test_an_outage_is_nobodys_silence(worker: LuaWorker) -> None:
    past(worker, 3600)
    # Before the outage all was well: who was silent then, and is silent now, has missed a lease.
    assert worker.beat(LEASE) == pytest.approx(FULL + 3_600_000, abs=5000)
    gaps = json.loads(worker.client.hget(worker.keys.beats, "gaps"))
    assert len(gaps) == 1


def test_witnessed_time_adds_up_over_a_bad_link(worker: LuaWorker) -> None:
    """Ten seconds witnessed, forty not, again and again: slow, but the dead are found."""
    past(worker, 5, *((50.0 * i + 50, 50.0 * i + 10) for i in reversed(range(20))))
    silence = worker.beat(LEASE)
    assert silence == pytest.approx((60 + 5 * 40) * 1000, abs=5000)


def test_short_leases_see_gaps_that_long_ones_bear(worker: LuaWorker) -> None:
    past(worker, 100, lease=LEASE)
    silence = worker.beat(3600)
    assert silence == pytest.approx(3_600_000 + 100_000, abs=5000)
    assert float(worker.client.hget(worker.keys.beats, "lease")) == 3600


def test_the_shortest_lease_beside_it_sets_the_measure(worker: LuaWorker) -> None:
    past(worker, 1, lease=3600)
    assert worker.beat(LEASE) == FULL
    assert float(worker.client.hget(worker.keys.beats, "lease")) == LEASE


def test_a_long_history_of_gaps_stays_small(worker: LuaWorker) -> None:
    past(worker, 40, *((50.0 * i + 100, 50.0 * i + 60) for i in reversed(range(40))))
    worker.beat(LEASE)
    assert len(json.loads(worker.client.hget(worker.keys.beats, "gaps"))) <= 41
    past(worker, 40, *((50.0 * i + 100, 50.0 * i + 60) for i in reversed(range(32))))
    worker.beat(LEASE)
    assert len(json.loads(worker.client.hget(worker.keys.beats, "gaps"))) == 32


@pytest.mark.parametrize("text", ["not JSON", "[" * 2000, '"a"', "[1]", '[["a", "b"]]'])
def test_hand_written_gaps_are_begun_anew(worker: LuaWorker, text: str) -> None:
    past(worker, 1)
    worker.client.hset(worker.keys.beats, "gaps", text)
    assert worker.beat(LEASE) == -1
    assert len(json.loads(worker.client.hget(worker.keys.beats, "gaps"))) == 1


def test_a_short_lease_takes_nothing_from_a_long_one_beside_it(worker: LuaWorker) -> None:
    """Who renews every 150 seconds has not died after one."""
    past(worker, 0.1, lease=1)
    assert worker.beat(600) == 600_000
    assert worker.beat(1) == 600_000
    worker.client.hincrbyfloat(worker.keys.beats, "longest_at", -601)
    assert worker.beat(1) == 1000


# After a sleep that workers shared


def test_for_a_lease_after_somebody_woke_nobody_is_dead(worker: LuaWorker) -> None:
    past(worker, 1)
    assert worker.beat(LEASE, woke=True) == -1
    assert worker.beat(LEASE) == -1
    worker.client.hincrbyfloat(worker.keys.beats, "woke", -(LEASE - 5))
    assert worker.beat(LEASE) == -1
    worker.client.hincrbyfloat(worker.keys.beats, "woke", -6)
    assert worker.beat(LEASE) == FULL


def test_a_worker_that_wakes_all_the_time_puts_off_half_of_it(worker: LuaWorker) -> None:
    past(worker, 1)
    assert worker.beat(LEASE, woke=True) == -1
    worker.client.hincrbyfloat(worker.keys.beats, "woke", -(LEASE + 1))
    assert worker.beat(LEASE, woke=True) == FULL
    worker.client.hincrbyfloat(worker.keys.beats, "woke", -LEASE)
    assert worker.beat(LEASE, woke=True) == -1


@pytest.mark.parametrize("woke", ["soon", "9e99", "nan", ""])
def test_a_hand_written_time_of_waking_stops_nothing(worker: LuaWorker, woke: str) -> None:
    past(worker, 1)
    worker.client.hset(worker.keys.beats, "woke", woke)
    assert worker.beat(LEASE) == FULL
    assert worker.beat(LEASE, woke=True) == -1
    assert float(worker.client.hget(worker.keys.beats, "woke")) < 1e12
