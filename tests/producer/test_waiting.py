"""What commands say while they wait, and where a job stands."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from mlxq_producer import EmbeddedServer, Producer
from mlxq_producer.cli import waiting
from mlxq_producer.cli.waiting import Waiting
from mlxq_producer.hindrances import hindrance, problems
from mlxq_schemas import Keys
from worker_process import eventually


@pytest.fixture(scope="module")
def own_server() -> Iterator[EmbeddedServer]:
    """One whose settings may be changed."""
    with EmbeddedServer() as running:
        yield running


@pytest.fixture
def up(redis_client: redis.Redis, queue: str) -> Callable[..., None]:
    """Writes the row of a worker that was heard ``age`` seconds ago and lives ``lives`` more."""

    def write(name: str = "w", *, age: float = 0.0, lives: float = 60.0, **fields: Any) -> None:
        seconds, micros = redis_client.time()
        now = seconds + micros / 1e6
        row = {"heartbeat": now - age, "started": now - age - 60, "state": "ready", **fields}
        redis_client.hset(Keys(queue).worker(name), mapping=row)
        redis_client.expire(Keys(queue).worker(name), 600)
        redis_client.zadd(Keys(queue).workers, {name: now + lives})

    return write


NAMED = {"identity": "tiny@0123456789ab", "names": json.dumps(["tiny", "tiny@0123456789ab"])}


@pytest.mark.parametrize(
    ("row", "model", "said"),
    [
        ({}, None, ""),
        ({"state": "working"}, "any model", ""),
        (NAMED, "tiny", ""),
        (NAMED, "large", "no worker has the model large (there is tiny@0123456789ab): start "),
        ({"state": "loading", "stage": "loading tiny"}, None, "w is not ready yet: loading tiny"),
        ({"state": "blocked", "problem": "eviction_policy"}, None, "the server may evict jobs"),
        ({"state": "draining"}, None, "worker w finishes what it has and ends"),
        ({"age": 12.4}, None, "worker w has not been heard for 12s"),
        ({"state": "stopped", "age": 5, "lives": -1}, None, "no worker is up (w stopped 5s ago)"),
        ({"age": 20, "lives": -5}, None, "no worker is up (w was last heard 20s ago): start"),
    ],
)
def test_what_keeps_a_job_from_being_done(producer, up, row, model, said):
    up(**row)
    found = hindrance(producer.status(), model)
    assert said in found
    assert bool(said) == bool(found)


def test_one_that_serves_is_enough(producer, up):
    up("a", age=12)
    up("b", state="loading")
    up("c")
    assert hindrance(producer.status()) == ""
    assert problems(producer.status()) == ["worker a has not been heard for 12s"]


def test_all_problems_are_told(own_server):
    with Producer(own_server.url, "q") as producer, redis.Redis.from_url(own_server.url) as admin:
        admin.config_set("maxmemory-policy", "allkeys-lru")
        admin.config_set("maxmemory", "1mb")
        none_up, evicts, full = problems(producer.status())
    assert none_up == "no worker is up: start mlxq worker --queue q"
    assert evicts.startswith("the server may evict jobs (maxmemory-policy allkeys-lru): CONFIG SET")
    assert full.startswith("the server's memory is nearly full (")


def test_the_model_that_the_oldest_job_asks_for(producer, up):
    up(**NAMED)
    producer.submit(prompt="x", model="large", id="a")
    time.sleep(0.01)  # entries of one millisecond have no order
    producer.submit(prompt="x", model="tiny", id="b", priority="high")
    status = producer.status()
    assert status.oldest_model == "large"
    assert problems(status)[0].startswith("jobs wait, but no worker has the model large")


def test_where_a_job_stands(producer, worker, up, monkeypatch):
    for number in range(4):
        producer.submit(prompt="x", id=f"n{number}")
    producer.submit(prompt="x", id="h", priority="high")
    producer.submit(prompt="x", id="l", priority="low")
    producer.submit(prompt="x", id="later", not_before=producer.now() + 7200)
    assert [producer.place(f"n{number}").ahead for number in range(4)] == [1, 2, 3, 4]
    assert (producer.place("h").ahead, producer.place("l").ahead) == (0, 5)
    assert worker.claim().id == "h"
    assert producer.place("n3").told() == (
        f"queued; 3 ahead; no worker is up: start mlxq worker --queue {producer.queue}"
    )
    up("scripted")
    assert producer.place("n3").told() == "queued; 3 ahead"
    assert producer.place("h").told() == "running on scripted"
    up("scripted", age=20, lives=-5)
    assert (
        producer.place("h")
        .told()
        .startswith(
            "running on scripted, which has not been heard for 20s; another worker takes over"
        )
    )
    assert producer.place("later").told() in ("begins in 2h", "begins in 1h 59m")
    worker.finish("h", "text")
    assert producer.place("h").told() == producer.place("nobody").told() == ""
    monkeypatch.setattr("mlxq_producer.place.COUNTED", 2)
    assert producer.place("n3").told().startswith("queued; more than 2 ahead; no worker is up (")


def test_a_job_that_was_pushed_by_hand_stands_too(producer, redis_client, queue):
    redis_client.hset(Keys(queue).job("a"), "spec", '{"prompt": "x", "model": "m"}')
    redis_client.xadd(Keys(queue).jobs(), {"id": "a"})
    place = producer.place("a")
    assert (place.state, place.model) == ("queued", "m")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "SILENCE_SECONDS", 0.05)
    monkeypatch.setattr(waiting, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(waiting, "AGAIN_SECONDS", 3600.0)


def test_it_is_said_again_when_it_changes(producer, worker, up, quick):
    producer.submit(prompt="x", id="first")
    producer.submit(prompt="x", id="a")
    said: list[str] = []
    with Waiting(producer, "a", say=said.append):
        eventually(lambda: len(said) == 1, "a word of the missing worker")
        up("scripted")
        eventually(lambda: len(said) == 2, "a word of the worker that came")
        worker.claim()
        worker.claim()
        eventually(lambda: len(said) == 3, "a word of its start")
    assert said == [
        f"queued; 1 ahead; no worker is up: start mlxq worker --queue {producer.queue}",
        "queued; 1 ahead",
        "running on scripted",
    ]


def test_for_many_jobs_only_what_hinders_is_said(producer, up, quick):
    said: list[str] = []
    with Waiting(producer, say=said.append):
        eventually(lambda: len(said) == 1, "a word of the missing worker")
        up()
        eventually(lambda: len(said) == 2, "a word of the worker that came")
    assert said[0].startswith("no worker is up: start")
    assert said[1] == "a worker is up: the work goes on"


def test_nothing_is_said_while_something_is_heard(producer, monkeypatch):
    monkeypatch.setattr(waiting, "SILENCE_SECONDS", 3600.0)
    said: list[str] = []
    producer.submit(prompt="x", id="a")
    with Waiting(producer, "a", say=said.append) as heard:
        heard.heard()
    assert said == []


def test_commands_say_it_on_stderr_and_not_with_json(producer, mlxq, quick):
    producer.submit(prompt="x", id="a")
    line = f"queued; 0 ahead; no worker is up: start mlxq worker --queue {producer.queue}\n"
    for command in (("follow", "a"), ("result", "a"), ("submit", "-p", "x", "--id", "a", "-f")):
        result = mlxq(*command, "--wait", "0.6")
        assert (result.exit_code, result.stdout) == (5, "")
        assert result.stderr.startswith(line)
    assert mlxq("result", "a", "--wait", "0.6", "--json").stderr == ""
