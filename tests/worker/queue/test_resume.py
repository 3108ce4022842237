"""What earlier attempts published."""

from __future__ import annotations

import pytest
import redis

from lua_worker import LuaWorker
from mlxq_schemas import BaseEvent, Job, Keys, Retrying, Started, Token
from mlxq_worker.queue import resume as module
from mlxq_worker.queue.resume import Prior, read_prior


def published(other: LuaWorker, *events: BaseEvent) -> None:
    other.submit(Job(id="a", prompt="p"))
    [(entry, job_id)] = other.read()
    other.append(job_id, other.claim(job_id, entry)[1], *events)


def prior_of(client: redis.Redis, other: LuaWorker, model: str) -> Prior:
    return read_prior(client, other.keys, "a", model, int(other.state("a")["seq"]))


def token(text: str, *ids: int) -> Token:
    return Token(job="a", text=text, ids=list(ids))


def test_text_and_ids_join_over_pages(
    client: redis.Redis, keys: Keys, other: LuaWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAGE", 3)
    tokens = [token(f"t{i} ", i, i + 100) for i in range(8)]
    published(other, Started(job="a"), *tokens)
    prior = prior_of(client, other, "m")
    assert prior.text == "".join(t.text for t in tokens)
    assert prior.ids == [i for t in tokens for i in t.ids]


def test_nothing_published(client: redis.Redis, keys: Keys) -> None:
    assert read_prior(client, keys, "none", "m", 0) == Prior()


def test_text_before_a_restart_is_void(client: redis.Redis, keys: Keys, other: LuaWorker) -> None:
    again = Retrying(job="a", code="x", message="", restart=True)
    goes_on = Retrying(job="a", code="x", message="")
    published(other, token("old", 1), again, token("new", 2), goes_on, token("er", 3))
    assert prior_of(client, other, "m") == Prior("newer", [2, 3])


def test_ids_without_text_are_gone_on_from(client: redis.Redis, other: LuaWorker) -> None:
    """Of half a character when the job was put off, or of the end of the sequence."""
    published(other, token("a", 1), token("", 2, 3), token("b", 4), token("", 5))
    assert prior_of(client, other, "m") == Prior("ab", [1, 2, 3, 4, 5])


def test_text_without_ids_cannot_be_gone_on_from(
    client: redis.Redis, keys: Keys, other: LuaWorker
) -> None:
    published(other, token("a", 1), token("b"))
    assert prior_of(client, other, "m").restart


def test_only_the_model_that_made_the_text_goes_on_with_it(
    client: redis.Redis, keys: Keys, other: LuaWorker
) -> None:
    begins = [Started(job="a", model="m"), Started(job="a", model="n")]
    published(other, begins[0], token("of m", 1), begins[1])
    assert prior_of(client, other, "m") == Prior("of m", [1])
    assert "by m, not by n" in prior_of(client, other, "n").restart


def test_after_a_restart_the_new_model_goes_on(
    client: redis.Redis, keys: Keys, other: LuaWorker
) -> None:
    again = Retrying(job="a", code="restart", message="", restart=True)
    begins = [Started(job="a", model="m"), Started(job="a", model="n")]
    published(other, begins[0], token("of m", 1), again, begins[1], token("of n", 2))
    assert prior_of(client, other, "n") == Prior("of n", [2])
    assert prior_of(client, other, "m").restart


@pytest.mark.parametrize("gone", ["all", "first", "last"])
def test_text_is_not_gone_on_from_where_events_are_missing(
    client: redis.Redis, keys: Keys, other: LuaWorker, redis_client: redis.Redis, gone: str
) -> None:
    published(other, Started(job="a", model="m"), token("one ", 1), token("two", 2))
    events = keys.events("a")
    entries = [entry for entry, _ in redis_client.xrange(events)]
    redis_client.xdel(events, *{"all": entries, "first": entries[:1], "last": entries[-1:]}[gone])
    assert prior_of(client, other, "m").restart


def test_text_after_a_restart_does_not_need_what_was_before(
    client: redis.Redis, keys: Keys, other: LuaWorker, redis_client: redis.Redis
) -> None:
    again = Retrying(job="a", code="restart", message="", restart=True)
    published(other, token("old", 1), again, Started(job="a", model="m"), token("new", 2))
    first, second, *_ = (entry for entry, _ in redis_client.xrange(keys.events("a")))
    redis_client.xdel(keys.events("a"), first, second)
    assert prior_of(client, other, "m") == Prior("new", [2])


@pytest.mark.parametrize(
    ("maker", "goes_on"),
    [
        ("m@1a2b", True),
        ("other/name@1a2b", True),
        ("m@1a2c", False),
        ("m@1a2b-kv8g64", False),
        ("m", False),
    ],
)
def test_a_digest_says_who_goes_on_not_a_name(
    client: redis.Redis, keys: Keys, other: LuaWorker, maker: str, goes_on: bool
) -> None:
    published(other, Started(job="a", model=maker), token("so far", 1))
    prior = prior_of(client, other, "m@1a2b")
    assert (prior == Prior("so far", [1])) is goes_on
    assert (maker in prior.restart) is not goes_on
