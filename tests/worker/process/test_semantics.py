"""Retries, limits, poison and second lives, with real worker processes."""

from __future__ import annotations

import time

import pytest
import redis

from mlxq_producer import Producer
from mlxq_schemas import Event, Keys, Retrying, Token, is_terminal
from worker_process import HARMFUL, PATIENCE, StartWorker, WorkerProcess, eventually


@pytest.fixture
def harmful(start_worker: StartWorker) -> StartWorker:
    """Starts workers whose prompts can do harm, with short pauses between tries."""

    def start(*options: str, model: str = "noop:0.005", wait: bool = True) -> WorkerProcess:
        options = ("--retry-delay", "0.05", *options)
        return start_worker(*options, model=model, wait=wait, program=HARMFUL)

    return start


def whole(producer: Producer, name: str) -> tuple[list[str], str]:
    """Types of a job's events, and its text since it last began anew; its story is checked."""
    result = producer.result(name, wait=PATIENCE)
    events: list[Event] = list(producer.follow(name))
    assert [event.seq for event in events] == list(range(len(events)))
    assert is_terminal(events[-1])
    text = ""
    for event in events:
        if isinstance(event, Token):
            assert [ord(c) for c in event.text] == event.ids
            text += event.text
        elif isinstance(event, Retrying) and event.restart:
            text = ""
    assert result.text == text
    return [event.type for event in events if event.type != "token"], text


def test_errors_that_may_pass_are_retried_and_the_text_goes_on(
    harmful: StartWorker, producer: Producer, redis_client: redis.Redis, queue: str
) -> None:
    harmful()
    prompts = {"flaky": "flaky as it is", "breaking": "breaking once", "beside": "sound"}
    for name, prompt in prompts.items():
        producer.submit(id=name, prompt=prompt)
    for name, prompt in prompts.items():
        assert whole(producer, name)[1] == prompt
    types = whole(producer, "flaky")[0]
    assert types == ["queued", *["started", "retrying"] * 2, "started", "finished"]
    types = whole(producer, "breaking")[0]
    assert types == ["queued", "started", "retrying", "started", "finished"]
    hashes = {name: redis_client.hgetall(Keys(queue).job(name)) for name in prompts}
    assert hashes["flaky"][b"errors"] == b"2"
    assert not any(int(row[b"deaths"]) for row in hashes.values())
    assert not redis_client.exists(Keys(queue).delayed)


def test_a_job_that_always_fails_is_dead_and_may_be_sent_again(
    harmful: StartWorker, producer: Producer
) -> None:
    worker = harmful()
    producer.submit(id="a", prompt="hopeless", max_attempts=2)
    result = producer.result("a", wait=PATIENCE)
    assert (result.code, result.attempt) == ("media_fetch_failed", 2)
    assert [letter.attempts for letter in producer.dead("a")] == [2]
    worker.terminate()
    worker.wait()
    assert producer.retry_dead(code="media_fetch_failed") == ["a"]
    harmful()
    types, _ = whole(producer, "a")
    life = ["started", "retrying", "started"]
    assert types == ["queued", *life, "failed", "retrying", *life, "failed"]
    assert [letter.attempts for letter in producer.dead("a")] == [2]


def test_limits_of_a_job(harmful: StartWorker, producer: Producer) -> None:
    harmful("--max-rows", "3", "--look-ahead", "1", model="noop:0.02")
    now = time.time()
    long = {"prompt": "x" * 5000, "max_tokens": 5000}
    producer.submit(id="expires", deadline=now + 1.0, **long)
    producer.submit(id="slow", timeout=0.5, **long)
    producer.submit(id="late", prompt="x", deadline=now - 1)
    producer.submit(id="later", prompt="in time", not_before=now + 0.6, deadline=now + 3600)
    producer.submit(id="retried", prompt="hopeless", max_attempts=99, deadline=now + 1.0)
    results = {
        name: producer.result(name, wait=PATIENCE)
        for name in ("expires", "slow", "late", "later", "retried")
    }
    kinds = {name: result.type for name, result in results.items()}
    assert kinds == {
        "expires": "expired",
        "slow": "failed",
        "late": "expired",
        "later": "finished",
        "retried": "expired",
    }
    assert results["slow"].code == "timeout"
    assert 0 < len(whole(producer, "expires")[1]) < 5000
    assert 0 < len(whole(producer, "slow")[1]) < 5000
    assert results["slow"].usage.completion_tokens == len(results["slow"].text)
    started = [event for event in producer.follow("later") if event.type == "started"]
    assert started[0].t >= now + 0.6
    assert whole(producer, "late")[0] == ["queued", "expired"]


def test_a_delayed_job_can_be_cancelled(harmful: StartWorker, producer: Producer) -> None:
    harmful()
    producer.submit(id="new", prompt="x", not_before=time.time() + 3600)
    assert producer.cancel("new") == "cancelled"
    producer.submit(id="retried", prompt="hopeless", max_attempts=99)
    eventually(lambda: producer.status().delayed == 1, "a retry")
    producer.cancel("retried")
    assert producer.result("retried", wait=PATIENCE).type == "cancelled"
    assert producer.result("new").type == "cancelled"


def test_another_model_begins_the_text_anew(harmful: StartWorker, producer: Producer) -> None:
    text = "abcdefghij" * 60
    first = harmful("--model-name", "one", "--grace", "0")
    producer.submit(id="a", prompt=text, max_tokens=999)
    reader = producer.follow("a")
    while not isinstance(next(reader), Token):
        pass
    first.terminate()
    assert first.wait() == 0, first.log
    harmful("--model-name", "two")
    types, final = whole(producer, "a")
    assert types == ["queued", "started", "retrying", "started", "finished"]
    assert final == text
    [retrying] = [event for event in producer.follow("a") if isinstance(event, Retrying)]
    assert retrying.restart
    assert "by one, not by two" in retrying.message


def test_the_same_model_goes_on(harmful: StartWorker, producer: Producer) -> None:
    text = "abcdefghij" * 20
    first = harmful("--model-name", "one", "--grace", "0")
    producer.submit(id="a", prompt=text, max_tokens=999)
    reader = producer.follow("a")
    while not isinstance(next(reader), Token):
        pass
    first.terminate()
    first.wait()
    harmful("--model-name", "one")
    assert whole(producer, "a") == (["queued", "started", "started", "finished"], text)


def test_a_poison_job_ends_three_processes_the_last_one_alone(
    harmful: StartWorker, producer: Producer, redis_client: redis.Redis, queue: str
) -> None:
    """Every worker that dies is started again, as a supervisor would."""
    options = ("--lease", "0.5", "--max-rows", "4")
    texts = {f"j{i}": f"{i}: " + "abcdefghij" * 8 for i in range(12)}
    names = list(texts)
    producer.submit_many({"id": n, "prompt": texts[n], "max_tokens": 999} for n in names[:3])
    producer.submit(id="poison", prompt="toxic")
    producer.submit_many({"id": n, "prompt": texts[n], "max_tokens": 999} for n in names[3:])
    alive = [harmful(*options, wait=False) for _ in range(2)]
    dead: list[WorkerProcess] = []

    def over() -> bool:
        for worker in [worker for worker in alive if worker.process.poll() is not None]:
            alive.remove(worker)
            dead.append(worker)
            alive.append(harmful(*options, wait=False))
        return redis_client.xlen(Keys(queue).results) == len(texts) + 1

    eventually(over, "the end of all jobs")
    assert producer.result("poison").code == "poison"
    assert len(dead) == 3, [worker.log for worker in dead]
    assert "dying beside 0 others" in dead[-1].log
    for name, text in texts.items():
        assert whole(producer, name)[1] == text
    assert [letter.id for letter in producer.dead()] == ["poison"]
    assert redis_client.hget(Keys(queue).job("poison"), "deaths") == b"3"
