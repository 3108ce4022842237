"""An id used again, an entry pushed twice, a key that somebody overwrote: nothing is mixed up."""

from __future__ import annotations

import time
from typing import Any

import pytest
import redis

from lua_worker import LuaWorker
from mlxq_schemas import GROUP, Job, Token
from mlxq_schemas.clock import seconds_of


@pytest.fixture
def worker(redis_client: redis.Redis, queue: str) -> LuaWorker:
    return LuaWorker(redis_client, queue)


@pytest.fixture
def other(redis_client: redis.Redis, queue: str) -> LuaWorker:
    return LuaWorker(redis_client, queue, "w2")


def take(worker: LuaWorker, prompt: str = "p") -> tuple[bytes, int]:
    worker.submit(Job(id="x", prompt=prompt))
    [(entry, _)] = worker.read()
    return entry, worker.claim("x", entry)[1]


def wipe(worker: LuaWorker) -> None:
    worker.client.delete(*worker.client.keys(f"{worker.keys.prefix}:*"))


def push(worker: LuaWorker, priority: Any = "normal") -> bytes:
    return worker.client.xadd(worker.keys.jobs(priority), {"id": "x"})


# Fences


def test_epochs_are_unique_over_time(worker: LuaWorker) -> None:
    seen: set[int] = set()
    for turn in range(5):
        entry, epoch = take(worker, f"p{turn}")
        again = worker.claim("x", entry, "over")[1]
        seen |= {epoch, again}
        assert again > epoch
        wipe(worker)
    assert len(seen) == 10


@pytest.mark.parametrize("gone", ["expired", "flushed"])
def test_a_former_life_can_write_nothing(worker: LuaWorker, other: LuaWorker, gone: str) -> None:
    entry, stale = take(worker)
    if gone == "expired":
        worker.client.delete(worker.keys.job("x"), worker.keys.events("x"))
        worker.client.xack(worker.keys.jobs(), GROUP, entry)
        worker.client.xdel(worker.keys.jobs(), entry)
    else:
        wipe(worker)
    fresh, epoch = take(other, "another")
    before = worker.events("x"), worker.state("x")
    assert worker.append("x", stale, Token(job="x", text="late")) == -1
    assert worker.begin("x", stale) == -1
    assert worker.retry("x", stale, entry) == -1
    assert worker.hand_back("x", stale, entry) == -1
    assert worker.finish("x", stale, entry, "late") == -1
    assert worker.renew(entry) == [entry]
    assert (worker.events("x"), worker.state("x")) == before
    assert other.finish("x", epoch, fresh, "right") == 1
    assert worker.result("x").text == "right"


def test_an_epoch_is_above_the_last_also_if_the_clock_went_back(worker: LuaWorker) -> None:
    entry, epoch = take(worker)
    ahead = epoch + 10**12
    worker.client.hset(worker.keys.job("x"), "epoch", ahead)
    assert worker.hand_back("x", ahead, entry) == 1
    assert ahead + 2 <= worker.claim("x", entry, "over")[1] <= ahead + 2 * 10**6


def test_two_servers_that_go_on_from_one_epoch_give_out_different_ones(worker: LuaWorker) -> None:
    """A replica that becomes the server knows an older state, and its clock may be behind."""
    entry, epoch = take(worker)
    seen: set[int] = set()
    for _ in range(20):
        worker.client.hset(worker.keys.job("x"), "epoch", epoch + 10**12)
        seen.add(worker.claim("x", entry, "over")[1])
    assert len(seen) == 20


def test_who_took_the_entry_over_keeps_it_when_it_is_handed_back(
    worker: LuaWorker, other: LuaWorker
) -> None:
    entry, epoch = take(worker)
    worker.client.xclaim(worker.keys.jobs(), GROUP, other.name, 0, [entry])
    assert worker.hand_back("x", epoch, entry) == 1
    [row] = worker.client.xpending_range(worker.keys.jobs(), GROUP, "-", "+", 1)
    assert (row["consumer"], row["time_since_delivered"] < 60_000) == (b"w2", True)
    assert other.claim("x", entry, "over")[3] == 0


def test_a_letter_is_of_one_life(worker: LuaWorker) -> None:
    entry, epoch = take(worker)
    worker.finish("x", epoch, entry, code="media_invalid")
    [(old, _)] = worker.client.xrange(worker.keys.dead)
    worker.client.delete(worker.keys.job("x"), worker.keys.events("x"), worker.keys.result("x"))
    entry, epoch = take(worker, "another")
    worker.finish("x", epoch, entry, code="media_invalid")
    assert worker.revive("x", old) == b"lost"
    assert worker.forget("x", old) == 1
    [(new, _)] = worker.client.xrange(worker.keys.dead)
    assert worker.state("x")["state"] == "failed"
    assert worker.revive("x", new) == b"ok"
    assert worker.cancel("x") == b"cancelled"


def test_a_job_pushed_by_hand_hears_nothing_of_an_earlier_one(worker: LuaWorker) -> None:
    entry, epoch = take(worker)
    worker.append("x", epoch, Token(job="x", text="old"))
    worker.finish("x", epoch, entry, "old")
    worker.client.delete(worker.keys.job("x"))
    worker.client.hset(worker.keys.job("x"), "spec", "{}")
    push(worker)
    [(entry, _)] = worker.read()
    epoch = worker.claim("x", entry)[1]
    assert not worker.client.exists(worker.keys.result("x"))
    worker.append("x", epoch, Token(job="x", text="new"))
    worker.finish("x", epoch, entry, "new")
    assert [event.type for event in worker.events("x")] == ["token", "finished"]


# Times


def test_times_are_the_servers(worker: LuaWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the clocks of producer and worker say."""
    monkeypatch.setattr(time, "time", lambda: 5.0)
    entry, epoch = take(worker)
    worker.append("x", epoch, Token(job="x", text="a"))
    worker.finish("x", epoch, entry, "a", code="media_invalid")
    monkeypatch.undo()
    now = seconds_of(worker.client.time())
    state = worker.state("x")
    times = [float(state[name]) for name in ("submitted", "started", "ended")]
    told = [event.t for event in worker.events("x")]
    assert told == sorted(told)
    assert worker.result("x").t == told[-1]
    [(_, letter)] = worker.client.xrange(worker.keys.dead)
    assert all(abs(moment - now) < 60 for moment in [*times, *told, float(letter[b"t"])])


def test_only_the_servers_clock_makes_a_delayed_job_due(worker: LuaWorker) -> None:
    now = seconds_of(worker.client.time())
    worker.submit(Job(id="x", prompt="p", not_before=now + 3600))
    assert worker.promote("x") == 0
    worker.come_due("x")
    assert worker.promote("x") == 1


# Entries pushed twice


def test_a_second_entry_in_another_stream_is_nothing(worker: LuaWorker, other: LuaWorker) -> None:
    entry, epoch = take(worker)
    stream = worker.keys.jobs("high")
    second = push(worker, "high")
    other.client.xgroup_create(stream, GROUP, "0")
    other.client.xreadgroup(GROUP, other.name, {stream: ">"})
    assert other.claim("x", second, priority="high") == [b"gone"]
    assert (worker.state("x")["deaths"], worker.client.xlen(stream)) == ("0", 0)
    assert worker.finish("x", epoch, entry, "") == 1


@pytest.mark.parametrize("how", ["new", "again", "over"])
def test_who_lost_another_entry_has_not_died(worker: LuaWorker, other: LuaWorker, how: Any) -> None:
    """The first entry was deleted by hand, while its owner goes on."""
    entry, _ = take(worker)
    second = push(worker)
    worker.client.xdel(worker.keys.jobs(), entry)
    other.read()
    assert other.claim("x", second, how)[3] == 0
    assert other.claim("x", second, "over")[3] == 0  # by who dropped it
    assert worker.claim("x", second, "over")[3] == 1


def test_a_group_made_anew_kills_nobody(worker: LuaWorker, other: LuaWorker) -> None:
    entry, _ = take(worker)
    worker.client.xgroup_destroy(worker.keys.jobs(), GROUP)
    assert other.read() == [(entry, "x")]
    assert other.claim("x", entry, "new")[3] == 0


def by_hand(worker: LuaWorker) -> bytes:
    worker.client.hset(worker.keys.job("x"), "spec", "{}")
    return push(worker)


def test_a_job_pushed_by_hand_and_cancelled_ends_once(worker: LuaWorker) -> None:
    """Its entry is read when its record has expired."""
    by_hand(worker)
    assert worker.cancel("x") == b"cancelled"
    assert worker.client.ttl(worker.keys.stray("x")) > 0
    worker.client.delete(worker.keys.job("x"), worker.keys.events("x"), worker.keys.result("x"))
    [(entry, _)] = worker.read()
    assert worker.claim("x", entry) == [b"gone"]
    assert (worker.depth(), worker.client.xlen(worker.keys.results)) == (0, 1)
    assert not worker.client.exists(worker.keys.job("x"), worker.keys.stray("x"), worker.keys.dead)


def test_an_old_entry_whose_record_expired_leaves_a_letter_and_no_end(worker: LuaWorker) -> None:
    old = int((seconds_of(worker.client.time()) - 3600) * 1000)
    worker.client.xadd(worker.keys.jobs(), {"id": "x"}, id=f"{old}-0")
    [(entry, _)] = worker.read()
    assert worker.claim("x", entry) == [b"gone"]
    assert not worker.client.exists(worker.keys.job("x"), worker.keys.results)
    [(_, letter)] = worker.client.xrange(worker.keys.dead)
    assert (letter[b"id"], letter[b"code"]) == (b"x", b"bad_message")


# Keys that somebody overwrote


@pytest.mark.parametrize("damage", ["string", "foreign entry"])
def test_events_that_somebody_overwrote_are_begun_anew(worker: LuaWorker, damage: str) -> None:
    entry, epoch = take(worker)
    events = worker.keys.events("x")
    if damage == "string":
        worker.client.set(events, "a string")
    else:
        worker.client.xadd(events, {"e": "mine"})
    assert worker.append("x", epoch, Token(job="x", text="a")) == 2
    assert worker.finish("x", epoch, entry, "a") == 1
    assert [event.seq for event in worker.events("x")] == [1, 2]
    assert worker.client.ttl(events) > 0


@pytest.mark.parametrize("key", ["results", "dead"])
def test_an_end_is_not_half_written_where_a_key_is_overwritten(worker: LuaWorker, key: str) -> None:
    entry, epoch = take(worker)
    before = worker.state("x"), worker.events("x")
    name = getattr(worker.keys, key)
    worker.client.set(name, "a string", ex=60)
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        worker.finish("x", epoch, entry, code="media_invalid")
    assert (worker.state("x"), worker.events("x")) == before
    worker.client.delete(name)
    assert worker.finish("x", epoch, entry, code="media_invalid") == 1


@pytest.mark.parametrize("key", ["jobs", "delayed"])
def test_no_job_is_accepted_where_a_key_is_overwritten(worker: LuaWorker, key: str) -> None:
    name = worker.keys.jobs() if key == "jobs" else worker.keys.delayed
    worker.client.set(name, "a string", ex=60)
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        worker.submit(Job(id="x", prompt="p"))
    assert not worker.client.exists(worker.keys.job("x"))
    worker.client.delete(name)
    assert worker.submit(Job(id="x", prompt="p")) == [b"ok"]


def test_hand_written_fields_do_not_keep_a_job_from_being_cancelled(worker: LuaWorker) -> None:
    fields = {"spec": "{}", "state": "queued", "stream": worker.keys.jobs(), "entry": "garbage"}
    worker.client.hset(worker.keys.job("x"), mapping={**fields, "seq": "x"})
    push(worker)
    assert worker.cancel("x") == b"cancelled"
    assert worker.cancel("x") == b"ended"
    [(entry, _)] = worker.read()
    assert worker.claim("x", entry) == [b"gone"]
    assert [event.type for event in worker.events("x")] == ["cancelled"]


def test_events_of_the_dead_are_kept_as_long_as_their_letters(worker: LuaWorker) -> None:
    entry, epoch = take(worker)
    worker.finish("x", epoch, entry, code="media_invalid")
    assert worker.client.ttl(worker.keys.events("x")) > 60


@pytest.mark.parametrize("step", ["submit", "finish", "retry", "cancel", "revive"])
def test_who_may_not_publish_leaves_nothing_half_done(worker: LuaWorker, step: str) -> None:
    """Redis 7 gives new users no channels."""
    if step in {"finish", "retry"}:
        entry, epoch = take(worker)
    elif step == "revive":
        entry, epoch = take(worker)
        worker.finish("x", epoch, entry, code="media_invalid")
        [(row, _)] = worker.client.xrange(worker.keys.dead)
    elif step == "cancel":
        worker.submit(Job(id="x", prompt="p"))
    before = worker.state("x"), worker.events("x"), worker.depth()
    worker.client.acl_setuser(
        "mute", enabled=True, passwords=["+pw"], keys="*", commands=["+@all"], reset_channels=True
    )
    options = worker.client.connection_pool.connection_kwargs
    mute = redis.Redis(port=options["port"], username="mute", password="pw")
    asking = LuaWorker(mute, worker.queue)
    steps: dict[str, Any] = {
        "submit": lambda: asking.submit(Job(id="x", prompt="p")),
        "finish": lambda: asking.finish("x", epoch, entry, "text"),
        "retry": lambda: asking.retry("x", epoch, entry),
        "cancel": lambda: asking.cancel("x"),
        "revive": lambda: asking.revive("x", row),
    }
    try:
        with pytest.raises(redis.exceptions.NoPermissionError, match="PUBLISH"):
            steps[step]()
    finally:
        mute.close()
        worker.client.acl_deluser("mute")
    assert (worker.state("x"), worker.events("x"), worker.depth()) == before
