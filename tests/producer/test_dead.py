"""Dead letters: looked at, sent again, dropped."""

from __future__ import annotations

import asyncio
import json
import time

import pytest
from typer.testing import CliRunner

from mlxq_producer import AsyncProducer, following
from mlxq_producer import dead as module
from mlxq_producer.cli import app
from mlxq_schemas import Keys


@pytest.fixture
def bury(producer, worker):
    """Makes jobs fail with a code: ``bury("media_invalid", "a", "b")``."""

    def do(code: str, *names: str) -> None:
        for name in names:
            producer.submit(id=name, prompt="x")
            worker.claim()
            worker.tokens(name, "old ")
            worker.fail(name, code, f"no\ngood: {name}")

    return do


@pytest.fixture
def mlxq(server, queue, monkeypatch):
    monkeypatch.setenv("MLXQ_REDIS_URL", server.url)
    monkeypatch.setenv("MLXQ_QUEUE", queue)
    return lambda *args: CliRunner().invoke(app, list(args))


def age(redis_client, queue, seconds: float) -> None:
    """Make all dead letters older."""
    keys = Keys(queue)
    rows = redis_client.xrange(keys.dead)
    redis_client.delete(keys.dead)
    for _, fields in rows:
        redis_client.xadd(keys.dead, {**fields, b"t": str(time.time() - seconds)})


def test_letters_are_listed_page_by_page_and_chosen(
    producer, bury, redis_client, queue, monkeypatch
):
    monkeypatch.setattr(module, "PAGE", 2)
    bury("media_invalid", "a", "b")
    age(redis_client, queue, 7200)
    bury("timeout", "c", "d", "e")
    assert [letter.id for letter in producer.dead()] == list("abcde")
    assert [letter.id for letter in producer.dead(code="media_invalid")] == ["a", "b"]
    assert [letter.id for letter in producer.dead(older_than=3600)] == ["a", "b"]
    assert [letter.id for letter in producer.dead("c")] == ["c"]
    assert [letter.id for letter in producer.dead(["b", "c"], code="timeout")] == ["c"]
    [letter] = producer.dead("a")
    assert (letter.code, letter.message, letter.attempts) == ("media_invalid", "no\ngood: a", 1)
    assert 7000 < time.time() - letter.t < 8000


def test_a_dead_job_sent_again_lives_a_second_life(producer, worker, bury):
    bury("timeout", "a")
    assert producer.retry_dead() == ["a"]
    assert producer.retry_dead() == []
    assert producer.dead() == []
    reader = producer.follow("a")
    seen = [next(reader) for _ in range(5)]
    assert [e.type for e in seen] == ["queued", "started", "token", "failed", "retrying"]
    assert (seen[-1].restart, seen[-1].code) == (True, "revived")
    worker.claim()
    worker.tokens("a", "new")
    worker.finish("a", "new")
    rest = list(reader)
    assert [e.type for e in rest] == ["started", "token", "finished"]
    assert [e.seq for e in [*seen, *rest]] == list(range(8))
    assert producer.result("a").text == "new"
    late = [e.type for e in producer.follow("a")]
    assert late == [e.type for e in [*seen, *rest]]


@pytest.mark.parametrize("page", [2, 4, 5])
def test_both_lives_are_read_wherever_a_page_ends(producer, worker, bury, monkeypatch, page):
    monkeypatch.setattr(following, "PAGE", page)
    bury("timeout", "a")
    producer.retry_dead("a")
    worker.claim()
    worker.finish("a", "")
    kinds = [event.type for event in producer.follow("a")]
    first = ["queued", "started", "token", "failed"]
    assert kinds == [*first, "retrying", "started", "finished"]


@pytest.mark.parametrize("page", [2, 4])
def test_a_life_that_ends_with_a_page_has_ended(producer, bury, monkeypatch, page):
    monkeypatch.setattr(following, "PAGE", page)
    bury("timeout", "a")
    assert [event.seq for event in producer.follow("a")] == [0, 1, 2, 3]


def test_waiting_for_the_second_result(producer, worker, bury):
    bury("timeout", "a")
    producer.retry_dead("a")
    worker.claim()
    worker.finish("a", "new")
    assert producer.result("a", wait=30).text == "new"


def test_what_is_dropped_is_gone(producer, bury, redis_client, queue):
    bury("timeout", "a", "b")
    redis_client.xadd(Keys(queue).dead, {"id": "no name", "code": "bad_message", "t": "1"})
    assert [letter.id for letter in producer.drop_dead(code="bad_message")] == ["no name"]
    assert [letter.id for letter in producer.drop_dead("a")] == ["a"]
    assert [letter.id for letter in producer.dead()] == ["b"]
    assert producer.submit(id="a", prompt="other") == "a"


def test_a_letter_that_names_no_job_cannot_be_sent(producer, redis_client, queue):
    redis_client.xadd(Keys(queue).dead, {"id": "no name", "code": "bad_message", "t": "1"})
    assert producer.retry_dead() == []
    assert len(producer.dead()) == 1


def test_the_async_client_does_the_same(server, queue, bury):
    bury("timeout", "a", "b")

    async def story() -> None:
        async with AsyncProducer(server.url, queue) as producer:
            assert [letter.id for letter in await producer.dead()] == ["a", "b"]
            assert await producer.retry_dead("a") == ["a"]
            assert [letter.id for letter in await producer.drop_dead()] == ["b"]

    asyncio.run(story())


def test_the_command(mlxq, bury, redis_client, queue):
    bury("media_invalid", "a", "b")
    age(redis_client, queue, 7200)
    bury("timeout", "c", "d")
    lines = mlxq("dead", "list", "--older-than", "1h").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["a", "b"]
    assert lines[0].endswith("media_invalid  no good: a")
    listed = mlxq("dead", "list", "--code", "timeout", "--json").stdout.splitlines()
    assert [json.loads(line)["id"] for line in listed] == ["c", "d"]
    assert "message: no\ngood: c\n" in mlxq("dead", "show", "c").stdout
    assert json.loads(mlxq("dead", "show", "c", "--json").stdout)["code"] == "timeout"
    assert mlxq("dead", "retry", "c").stdout == "c\n"
    assert mlxq("dead", "drop", "--code", "media_invalid", "--json").stdout == (
        '{"id": "a"}\n{"id": "b"}\n'
    )
    assert mlxq("dead", "retry", "--all").stdout == "d\n"
    nothing = mlxq("dead", "drop", "--all")
    assert (nothing.exit_code, nothing.stdout, nothing.stderr) == (0, "", "none\n")


@pytest.mark.parametrize(
    ("args", "status", "words"),
    [
        (["retry"], 2, "--all"),
        (["drop"], 2, "--all"),
        (["retry", "a", "--all"], 2, "--all"),
        (["retry", "a"], 1, "error[unknown_job]"),
        (["drop", "a"], 1, "error[unknown_job]"),
        (["show", "a"], 1, "error[unknown_job]"),
        (["list", "--older-than", "soon"], 2, "--older-than soon: must be a duration"),
    ],
)
def test_mistakes(mlxq, args, status, words):
    result = mlxq("dead", *args)
    assert result.exit_code == status
    assert words in result.stderr


def test_an_odd_row_does_not_hide_the_others(producer, worker, redis_client, queue):
    producer.submit(id="a", prompt="x")
    worker.claim()
    worker.fail("a", "media_invalid", "no image")
    redis_client.xadd(Keys(queue).dead, {"id": "b", "t": "yesterday", "attempts": "inf"})
    assert [(letter.id, letter.attempts) for letter in producer.dead()] == [("a", 1), ("b", 0)]
    assert [letter.id for letter in producer.drop_dead()] == ["a", "b"]
