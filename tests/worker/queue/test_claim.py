"""Taking a job that was read: what the server says of it."""

from __future__ import annotations

import pytest
import redis

from lua_worker import LuaWorker
from mlxq_schemas import GROUP, Job, Keys, Token
from mlxq_worker.queue.claim import Claim, Claimer, Refused, Retention
from mlxq_worker.queue.entry import Entry
from mlxq_worker.queue.link import Link


@pytest.fixture
def claimer(keys: Keys) -> Claimer:
    return Claimer(keys, "other", Retention(60, 600))


def read(other: LuaWorker) -> Entry:
    [(entry, job_id)] = other.read()
    return Entry(other.keys.jobs(), entry.decode(), job_id)


def test_a_job_is_claimed(link: Link, claimer: Claimer, other: LuaWorker) -> None:
    other.submit(Job(id="a", prompt="p"))
    [claim] = claimer.claim(link, [read(other)])
    assert isinstance(claim, Claim)
    assert (claim.job_id, claim.attempt, claim.seq) == ("a", 1, 1)
    assert claim.request_id == f"a:{claim.epoch}"
    assert claim.life == other.state("a")["life"]
    assert not claim.cancelled
    assert claim.spec
    assert claim.submitted == pytest.approx(float(other.state("a")["submitted"]))


def test_taking_over_counts_a_death(link: Link, claimer: Claimer, other: LuaWorker) -> None:
    other.submit(Job(id="a", prompt="p"))
    entry = read(other)
    claimer.claim(link, [entry])
    other.cancel("a")
    again = Entry(entry.stream, entry.id, "a", "left")
    [claim] = claimer.claim(link, [again])
    assert isinstance(claim, Claim)
    assert (claim.deaths, claim.attempt, claim.cancelled) == (1, 2, True)


def test_an_ended_job_is_gone(
    link: Link, claimer: Claimer, other: LuaWorker, redis_client: redis.Redis
) -> None:
    other.submit(Job(id="a", prompt="p"))
    other.do(["x"])
    redis_client.xadd(other.keys.jobs(), {"id": "a"})
    assert claimer.claim(link, [read(other)]) == [None]
    assert other.depth() == 0


def test_an_entry_without_a_job_is_claimed_without_spec(
    link: Link, claimer: Claimer, other: LuaWorker, redis_client: redis.Redis
) -> None:
    redis_client.xadd(other.keys.jobs(), {"id": "ghost"})
    [claim] = claimer.claim(link, [read(other)])
    assert isinstance(claim, Claim)
    assert claim.spec is None


@pytest.mark.parametrize("fields", [{"x": "y"}, {"id": "a b"}, {"id": b"\xff"}, {"id": "z" * 500}])
def test_an_entry_that_names_no_job_is_buried(
    link: Link,
    claimer: Claimer,
    other: LuaWorker,
    redis_client: redis.Redis,
    fields: dict[str, str],
) -> None:
    other.submit(Job(id="good", prompt="p"))
    good = read(other)
    bad_id = redis_client.xadd(other.keys.jobs(), fields)
    redis_client.xreadgroup(GROUP, "other", {other.keys.jobs(): ">"})
    value = fields.get("id")
    name = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    bad = Entry(other.keys.jobs(), bad_id.decode(), name)
    nothing, claim = claimer.claim(link, [bad, good])
    assert nothing is None
    assert isinstance(claim, Claim)
    assert claim.job_id == "good"
    [(_, row)] = redis_client.xrange(other.keys.dead)
    assert row[b"code"] in {b"bad_message", b"invalid_job"}
    assert redis_client.xpending(other.keys.jobs(), GROUP)["pending"] == 1


def test_a_deleted_entry_leaves_the_pending_list(
    link: Link, claimer: Claimer, other: LuaWorker, redis_client: redis.Redis
) -> None:
    other.submit(Job(id="a", prompt="p"))
    entry = read(other)
    redis_client.xdel(entry.stream, entry.id)
    assert claimer.claim(link, [Entry(entry.stream, entry.id, deleted=True)]) == [None]
    assert redis_client.xpending(entry.stream, GROUP)["pending"] == 0
    redis_client.delete(other.keys.job("a"), other.keys.events("a"))


def test_a_refused_claim_is_not_an_outcome(
    link: Link, claimer: Claimer, other: LuaWorker, redis_client: redis.Redis
) -> None:
    other.submit(Job(id="a", prompt="p"))
    entry = read(other)
    redis_client.config_set("maxmemory", 1)
    try:
        [outcome] = claimer.claim(link, [entry])
    finally:
        redis_client.config_set("maxmemory", 0)
    assert isinstance(outcome, Refused)


@pytest.mark.parametrize("field", ["epoch", "seq", "attempt", "deaths", "errors", "submitted"])
def test_hand_written_counts_may_be_anything(
    link: Link, claimer: Claimer, other: LuaWorker, redis_client: redis.Redis, field: str
) -> None:
    redis_client.hset(other.keys.job("a"), mapping={"spec": "{}", field: "many"})
    redis_client.xadd(other.keys.jobs(), {"id": "a"})
    [claim] = claimer.claim(link, [read(other)])
    assert isinstance(claim, Claim)
    assert (claim.attempt, claim.deaths, claim.seq, claim.errors) == (1, 0, 0, 0)


def test_a_key_that_is_no_job_is_claimed_without_spec(
    link: Link, claimer: Claimer, other: LuaWorker, redis_client: redis.Redis
) -> None:
    """Were it refused, it would be read again and again, and nothing after it."""
    redis_client.xadd(other.keys.jobs(), {"id": "odd"})
    redis_client.set(other.keys.job("odd"), "not a hash")
    [claim] = claimer.claim(link, [read(other)])
    assert isinstance(claim, Claim)
    assert claim.spec is None


def test_hand_written_times_may_be_anything(
    link: Link, claimer: Claimer, other: LuaWorker, redis_client: redis.Redis
) -> None:
    other.submit(Job(id="a", prompt="p"))
    redis_client.hset(other.keys.job("a"), "submitted", "yesterday")
    [claim] = claimer.claim(link, [read(other)])
    assert isinstance(claim, Claim)
    assert claim.submitted > 0


@pytest.mark.parametrize(
    "fields",
    [
        {"life": b"\xff\xfe"},
        {"life": "two words"},
        {"state": "running", "stream": "high", "entry": "garbage"},
        {"state": "running", "stream": "high"},
        {"epoch": "1e300"},
        {"seq": str(2**63 - 1)},
    ],
)
def test_a_hand_written_field_keeps_no_worker_from_reading_on(
    link: Link,
    claimer: Claimer,
    other: LuaWorker,
    redis_client: redis.Redis,
    fields: dict[str, str | bytes],
) -> None:
    if "stream" in fields:
        fields = {**fields, "stream": other.keys.jobs("high")}
    redis_client.hset(other.keys.job("a"), mapping={"spec": "{}", **fields})
    redis_client.xadd(other.keys.jobs(), {"id": "a"})
    [claim] = claimer.claim(link, [read(other)])
    assert isinstance(claim, Claim)
    assert claim.life.isdigit()
    entry = claim.entry.id.encode()
    assert other.append("a", claim.epoch, Token(job="a", text="x")) == 1
    assert other.finish("a", claim.epoch, entry, "x") == 1
