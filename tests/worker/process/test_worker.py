"""Whole worker processes, without a model: jobs in, events and results out."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import redis

from mlxq_producer import Producer
from mlxq_producer.embedded import EmbeddedServer
from mlxq_schemas import GROUP, Finished, Keys, Result, Token, is_terminal
from mlxq_schemas.wire import decode_event
from tcp_proxy import TcpProxy
from worker_process import PATIENCE, StartWorker, WorkerProcess, eventually


def check(client: redis.Redis, queue: str, texts: dict[str, str]) -> None:
    """Every job ended once, with all of its text and no gap."""
    keys = Keys(queue)
    for job_id, text in texts.items():
        rows = client.xrange(keys.events(job_id))
        events = [decode_event(fields[b"e"]) for _, fields in rows]
        assert [event.seq for event in events] == list(range(len(events))), job_id
        assert [is_terminal(event) for event in events].count(True) == 1, job_id
        last = events[-1]
        assert isinstance(last, Finished), (job_id, last)
        tokens = [event for event in events if isinstance(event, Token)]
        assert "".join(token.text for token in tokens) == last.text == text, job_id
        assert [i for token in tokens for i in token.ids] == [ord(c) for c in text], job_id
        assert last.usage.completion_tokens == len(text)
    assert sum(client.xlen(stream) for stream in keys.all_jobs()) == 0


def submit(producer: Producer, count: int, length: int = 20) -> dict[str, str]:
    texts = {f"j{i}": f"{i}:" + "abcdefghij" * (length // 10) for i in range(count)}
    producer.submit_many(
        {"id": name, "prompt": text, "max_tokens": 9999} for name, text in texts.items()
    )
    return texts


def wait(producer: Producer, names: Sequence[str]) -> list[Result]:
    return [producer.result(name, wait=PATIENCE) for name in names]


def started(producer: Producer, name: str) -> None:
    """Wait for the first text of a job."""
    for event in producer.follow(name):
        if event.type == "token":
            return
    pytest.fail(f"{name} ended without a token")


def test_jobs_are_done_and_the_worker_shows_and_ends_in_order(
    start_worker: StartWorker, producer: Producer, redis_client: redis.Redis, queue: str
) -> None:
    worker = start_worker("--max-rows", "4", "--name", "w1")
    texts = submit(producer, 30)
    wait(producer, list(texts))
    check(redis_client, queue, texts)
    keys = Keys(queue)
    eventually(lambda: redis_client.hget(keys.worker("w1"), "max_rows") == b"4", "health row")
    eventually(lambda: float(redis_client.hget(keys.worker("w1"), "jobs_per_s") or 0) > 0, "a rate")
    worker.terminate()
    assert worker.wait() == 0, worker.log
    assert not redis_client.exists(keys.workers, keys.worker("w1"))


def test_what_a_result_says(start_worker: StartWorker, producer: Producer) -> None:
    start_worker("--name", "w1", "--model-name", "mine")
    producer.submit(id="a", prompt="hello", model="mine", max_tokens=3)
    producer.submit(id="none", prompt="hello", max_tokens=0, stream=False)
    result, nothing = wait(producer, ["a", "none"])
    assert (result.type, result.reason, result.text) == ("finished", "length", "hel")
    assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (5, 3)
    assert result.provenance
    assert (result.provenance.model, result.provenance.worker) == ("noop", "w1")
    assert result.provenance.sampler["max_tokens"] == 3
    assert (nothing.type, nothing.reason, nothing.text) == ("finished", "length", "")


def test_bad_jobs_fail_alone(
    start_worker: StartWorker, producer: Producer, redis_client: redis.Redis, queue: str
) -> None:
    keys = Keys(queue)
    specs = {
        "broken": (b"\xc1\xff", "bad_message"),
        "future": (b'{"v": 2, "prompt": "p"}', "unknown_version"),
        "huge": (b"x" * (32 * 1024 * 1024 + 1), "too_large"),
        "field": (b'{"prompt": "p", "surprise": 1}', "unsupported"),
        "name": (b'{"messages": [{"role": "user", "content": "p", "name": "b"}]}', "unsupported"),
        "detail": (
            b'{"prompt": "p", "images": [{"url": "data:,x", "detail": "low"}]}',
            "unsupported",
        ),
        "call": (b'{"prompt": "p", "callback": "https://x"}', "unsupported"),
        "half": (b'{"prompt": "half \\ud83d"}', "invalid_job"),
        "strange": (b'{"prompt": "p", "\\ud83d": 1}', "invalid_job"),
        "nan": (b'{"prompt": "p", "metadata": {"score": NaN}}', "invalid_job"),
        "kind": (b'{"prompt": "p", "sampling": {"max_tokens": "5"}}', "invalid_job"),
        "key": (b"\x81\x90\x01", "bad_message"),
        "model": (b'{"prompt": "p", "model": "other"}', "unknown_model"),
        "ghost": (None, "bad_message"),
    }
    for name, (spec, _) in specs.items():
        if spec is not None:
            redis_client.hset(keys.job(name), "spec", spec)
        redis_client.xadd(keys.jobs(), {"id": name})
    redis_client.xadd(keys.jobs(), {"wrong": "field"})
    start_worker()
    producer.submit(id="good", prompt="fine")
    assert wait(producer, ["good"])[0].text == "fine"
    for name, (_, code) in specs.items():
        result = producer.result(name, wait=PATIENCE)
        assert (result.type, result.code) == ("failed", code)
    rows = [fields for _, fields in redis_client.xrange(keys.dead)]
    dead = {row[b"id"].decode(): row[b"code"].decode() for row in rows}
    assert dead == {**{name: code for name, (_, code) in specs.items()}, "": "bad_message"}
    assert redis_client.xpending(keys.jobs(), GROUP)["pending"] == 0


def test_a_running_and_a_queued_job_are_cancelled(
    start_worker: StartWorker, producer: Producer
) -> None:
    start_worker("--max-rows", "1", "--look-ahead", "1", model="noop:0.02")
    for name in ("running", "ahead", "queued"):
        producer.submit(id=name, prompt="x" * 5000, max_tokens=5000)
    started(producer, "running")
    outcomes = [producer.cancel(name) for name in ("queued", "ahead", "running")]
    results = wait(producer, ["running", "ahead", "queued"])
    assert [result.type for result in results] == ["cancelled"] * 3, outcomes
    assert 0 < len(results[0].text) < 5000
    producer.submit(id="next", prompt="rows are free")
    assert wait(producer, ["next"])[0].ok


def test_sigterm_hands_back_what_does_not_end_in_time(
    start_worker: StartWorker, producer: Producer, redis_client: redis.Redis, queue: str
) -> None:
    """A lease that never runs out in this test: the second worker must not wait for it."""
    options = ("--max-rows", "2", "--look-ahead", "2", "--lease", "600", "--grace", "1")
    first = start_worker(*options, model="noop:0.01")
    texts = submit(producer, 4, length=600)
    producer.submit_many({"id": f"more{i}", "prompt": f"more {i}"} for i in range(4))
    texts |= {f"more{i}": f"more {i}" for i in range(4)}
    started(producer, "j0")
    second = start_worker("--lease", "600")
    first.terminate()
    assert first.wait() == 0, first.log
    wait(producer, list(texts))
    check(redis_client, queue, texts)
    hashes = [redis_client.hgetall(Keys(queue).job(name)) for name in texts]
    assert any(int(row[b"attempt"]) > 1 for row in hashes)  # resumed after a hand-back
    assert not any(int(row.get(b"deaths", 0)) for row in hashes)
    second.terminate()
    assert second.wait() == 0


def test_a_second_signal_hands_back_at_once(
    start_worker: StartWorker, producer: Producer, redis_client: redis.Redis, queue: str
) -> None:
    worker = start_worker("--grace", "600", model="noop:0.02")
    producer.submit(id="long", prompt="x" * 100_000, max_tokens=100_000)
    started(producer, "long")
    worker.terminate()
    eventually(lambda: "stopping" in worker.log, "the first signal")
    worker.process.send_signal(signal.SIGINT)
    assert worker.wait() == 0, worker.log
    assert redis_client.hget(Keys(queue).job("long"), "uncounted") == b"1"


def test_burst_and_max_jobs_end_by_themselves(
    start_worker: StartWorker, producer: Producer, redis_client: redis.Redis, queue: str
) -> None:
    texts = submit(producer, 5)
    counted = start_worker("--max-jobs", "2")
    assert counted.wait() == 0, counted.log
    assert sum(redis_client.xlen(stream) for stream in Keys(queue).all_jobs()) == 3
    assert start_worker("--burst").wait() == 0
    check(redis_client, queue, texts)


def test_deleted_keys_while_idle_do_not_make_it_deaf(
    start_worker: StartWorker, producer: Producer, redis_client: redis.Redis, queue: str
) -> None:
    start_worker()
    producer.submit(id="before", prompt="x")
    wait(producer, ["before"])
    redis_client.delete(*redis_client.keys(f"{Keys(queue).prefix}:*"))
    texts = submit(producer, 10)
    wait(producer, list(texts))
    check(redis_client, queue, texts)


def test_lost_replies_and_cuts_double_no_token(
    start_worker: StartWorker,
    producer: Producer,
    redis_client: redis.Redis,
    queue: str,
    proxy: TcpProxy,
) -> None:
    start_worker("--max-rows", "4", model="noop:0.005", url=proxy.url)
    texts = submit(producer, 8, length=200)
    started(producer, "j0")
    for mark in ("EVALSHA", "XREADGROUP", "EVALSHA", "EVALSHA"):
        before = proxy.swallowed
        proxy.swallow(mark)
        eventually(lambda before=before: proxy.swallowed > before, f"a swallowed {mark}")
    proxy.cut()
    wait(producer, list(texts))
    check(redis_client, queue, texts)


@pytest.fixture
def roomy(redis_client: redis.Redis) -> Iterator[redis.Redis]:
    """A client whose server has its memory limit taken off again at the end."""
    yield redis_client
    redis_client.config_set("maxmemory", 0)


def test_a_full_server_delays_jobs_and_loses_none(
    start_worker: StartWorker, producer: Producer, roomy: redis.Redis, queue: str
) -> None:
    worker = start_worker("--max-rows", "2", "--look-ahead", "0", model="noop:0.005")
    texts = submit(producer, 8, length=100)
    started(producer, "j0")
    roomy.config_set("maxmemory", 1)
    eventually(lambda: "duty=publish" in worker.log, "a refused write")
    eventually(lambda: roomy.xlen(Keys(queue).jobs()) > 0, "nothing acknowledged")
    roomy.config_set("maxmemory", 0)
    wait(producer, list(texts))
    check(roomy, queue, texts)


def test_deleted_keys_of_running_jobs_end_their_rows(
    start_worker: StartWorker, producer: Producer, redis_client: redis.Redis, queue: str
) -> None:
    worker = start_worker("--max-rows", "1", model="noop:0.005")
    producer.submit(id="lost", prompt="x" * 100_000, max_tokens=100_000)
    started(producer, "lost")
    redis_client.delete(*redis_client.keys(f"{Keys(queue).prefix}:*"))
    eventually(lambda: "lost a job" in worker.log, "the loss")
    texts = submit(producer, 3)
    wait(producer, list(texts))
    check(redis_client, queue, texts)


@pytest.fixture
def kept_server(tmp_path: Path) -> EmbeddedServer:
    """A server of one's own that keeps its data."""
    return EmbeddedServer(data_dir=tmp_path / "data")


@pytest.mark.slow
def test_a_server_restart_loses_nothing(
    start_worker: StartWorker, kept_server: EmbeddedServer
) -> None:
    with kept_server as server:
        client = redis.Redis.from_url(server.url)
        client.config_set("appendfsync", "always")
        worker = start_worker("--queue", "kept", model="noop:0.01", url=server.url)
        with Producer(server.url, queue="kept") as producer:
            texts = submit(producer, 12, length=200)
            started(producer, "j0")
            for _ in range(2):
                server.stop()
                time.sleep(0.2)
                server.start()
                producer.submit(id=f"r{server.port}-{_}", prompt="after")
            wait(producer, list(texts))
            check(client, "kept", texts)
        assert worker.process.poll() is None
        client.close()


def test_kill_9_loses_and_doubles_nothing(
    start_worker: StartWorker, producer: Producer, redis_client: redis.Redis, queue: str
) -> None:
    options = ("--lease", "1", "--max-rows", "8")
    victims: list[WorkerProcess] = [start_worker(*options, model="noop:0.002") for _ in range(2)]
    texts = submit(producer, 200, length=50)
    for round_number in range(2):
        done = 40 * (round_number + 1)
        eventually(lambda done=done: redis_client.xlen(Keys(queue).results) >= done, "progress")
        victims[round_number].kill()
        victims.append(start_worker(*options, model="noop:0.002"))
    wait(producer, list(texts))
    check(redis_client, queue, texts)
    assert redis_client.xlen(Keys(queue).results) == len(texts)


@pytest.mark.slow
@pytest.mark.chaos
def test_a_frozen_worker_publishes_nothing_when_it_wakes(
    start_worker: StartWorker, producer: Producer, redis_client: redis.Redis, queue: str
) -> None:
    frozen = start_worker("--lease", "0.5", model="noop:0.01")
    texts = submit(producer, 4, length=300)
    started(producer, "j0")
    frozen.process.send_signal(signal.SIGSTOP)
    start_worker("--lease", "0.5", model="noop:0.01")
    hashes = [Keys(queue).job(name) for name in texts]
    eventually(
        lambda: all(redis_client.hget(key, "attempt") == b"2" for key in hashes), "the takeover"
    )
    frozen.process.send_signal(signal.SIGCONT)
    wait(producer, list(texts))
    check(redis_client, queue, texts)
    assert "lost a job" in frozen.log
    for name in texts:
        rows = redis_client.xrange(Keys(queue).events(name))
        attempts = [decode_event(fields[b"e"]).attempt for _, fields in rows]
        assert attempts == sorted(attempts)  # nothing of the first attempt after the second began


@pytest.mark.slow
@pytest.mark.chaos
def test_a_job_that_kills_workers_is_poison(
    start_worker: StartWorker, producer: Producer, redis_client: redis.Redis, queue: str
) -> None:
    def begun(attempt: int) -> bool:
        # Until it begins, a death does not count against a job that waits to be alone.
        known, uncounted = redis_client.hmget(Keys(queue).job("toxic"), "attempt", "uncounted")
        return int(known or 0) == attempt and uncounted is None

    producer.submit(id="toxic", prompt="x" * 100_000, max_tokens=100_000)
    for attempt in range(1, 4):
        worker = start_worker("--lease", "0.4", model="noop:0.01")
        eventually(lambda attempt=attempt: begun(attempt), f"attempt {attempt}")
        worker.kill()
    start_worker("--lease", "0.4")
    result = producer.result("toxic", wait=PATIENCE)
    assert (result.type, result.code) == ("failed", "poison")
