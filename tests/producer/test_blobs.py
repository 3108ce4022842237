"""Media live as long as their jobs, and jobs that lost theirs are sent again."""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections.abc import Callable

import pytest
from typer.testing import CliRunner

from answering_worker import AnsweringWorker
from mlxq_producer import AsyncProducer, Producer, caption
from mlxq_producer.cli import app
from mlxq_producer.errors import RetryErrors
from mlxq_schemas import Job, Keys
from worker_process import eventually

DAY = 86_400


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def left(redis_client, queue) -> Callable[[bytes], int]:
    """Seconds that a blob has left, by its content."""
    return lambda data: redis_client.ttl(Keys(queue).blob(sha(data)))


@pytest.fixture
def drop_blobs(redis_client, queue) -> Callable[[int], None]:
    """Waits for so many jobs, then lets all media go."""

    def drop(jobs: int) -> None:
        keys = Keys(queue)
        eventually(lambda: redis_client.xlen(keys.jobs()) == jobs, f"{jobs} jobs")
        names = list(redis_client.scan_iter(f"{keys.prefix}:blob:*"))
        assert names
        redis_client.delete(*names)

    return drop


@pytest.mark.parametrize(
    ("times", "least"),
    [
        ({"not_before": 3 * DAY}, 4 * DAY),
        ({"deadline": 5 * DAY}, 6 * DAY),
        ({"not_before": 2 * DAY, "deadline": 9 * DAY}, 10 * DAY),
        ({"not_before": -5.0}, DAY),
        ({}, 3600),
    ],
)
def test_media_outlive_the_times_of_their_job(server, queue, left, times, least):
    at = {name: time.time() + seconds for name, seconds in times.items()}
    with Producer(server.url, queue, media_ttl=3600) as producer:
        producer.submit(prompt="x", images=[b"1"], **at)
        assert least - 10 < left(b"1") < least + 10
        # The same bytes again, from one who needs them for less long, or longer.
        producer.submit(prompt="y", images=[b"1"])
        assert left(b"1") > least - 10
        producer.submit(prompt="z", images=[b"1"], not_before=time.time() + 20 * DAY)
        assert left(b"1") > 20 * DAY


def test_the_last_of_several_jobs_counts_and_so_do_blobs_stored_by_hand(
    producer, redis_client, queue, left
):
    redis_client.set(Keys(queue).blob(sha(b"hand")), b"hand", ex=10)
    later = time.time() + 7 * DAY
    producer.submit_many(
        [
            {"prompt": "a", "images": [b"1"]},
            {"prompt": "b", "images": [b"1", f"blob:{sha(b'hand')}"], "not_before": later},
            {"prompt": "c", "images": [b"1", b"2"]},
        ]
    )
    assert left(b"1") > 7 * DAY
    assert left(b"hand") > 7 * DAY
    assert left(b"2") <= DAY


def test_the_producers_clock_does_not_matter(producer, left, monkeypatch):
    due = time.time() + 2 * DAY
    monkeypatch.setattr(time, "time", lambda: due + 9 * DAY)
    producer.submit(prompt="x", images=[b"1"], not_before=due)
    assert left(b"1") > 2 * DAY


def test_the_command(server, queue, left, tmp_path):
    (tmp_path / "a.png").write_bytes(b"png")
    args = ["submit", "-p", "x", "--image", str(tmp_path / "a.png"), "--delay", "2d"]
    result = CliRunner().invoke(app, [*args, "--redis-url", server.url, "--queue", queue])
    assert result.exit_code == 0
    assert left(b"png") > 2 * DAY


def test_map_sends_again_what_lost_its_media(server, queue, drop_blobs, redis_client):
    jobs = [{"id": name, "prompt": name, "images": [name.encode()]} for name in "abc"]
    got = []
    with Producer(server.url, queue) as producer:
        reader = threading.Thread(target=lambda: got.extend(producer.map(jobs)))
        reader.start()
        drop_blobs(3)
        with AnsweringWorker(server.url, queue) as worker:
            reader.join(30)
        kinds = [event.type for event in producer.follow("a")]
        assert producer.dead() == []
    assert [(r.job, r.text) for r in got] == [(n, f"{n} {sha(n.encode())[:8]}") for n in "abc"]
    assert len(worker.jobs) == 6
    assert kinds == ["queued", "started", "failed", "retrying", "started", "finished"]


def test_it_is_sent_again_once_and_by_asyncio_too(server, queue, drop_blobs, redis_client):
    got = []

    async def story() -> None:
        async with AsyncProducer(server.url, queue) as producer:
            jobs = [{"id": "a", "prompt": "x", "images": [b"1"]}]
            got.extend([result async for result in producer.map(jobs)])

    reader = threading.Thread(target=lambda: asyncio.run(story()))
    reader.start()
    drop_blobs(1)
    with Forgetful(server.url, queue) as worker:
        reader.join(30)
    assert [(r.type, r.code) for r in got] == [("failed", "media_not_found")]
    assert len(worker.jobs) == 2


class Forgetful(AnsweringWorker):
    """Finds no picture, ever."""

    def _text(self, job: Job) -> tuple[str, str]:
        return "", "media_not_found"


def test_a_file_that_changed_meanwhile_is_not_sent_under_the_old_job(
    server, queue, drop_blobs, tmp_path
):
    (tmp_path / "a.png").write_bytes(b"old")
    got = []
    with Producer(server.url, queue) as producer:
        jobs = [{"id": "a", "prompt": "x", "images": [tmp_path / "a.png"]}]
        reader = threading.Thread(target=lambda: got.extend(producer.map(jobs)))
        reader.start()
        drop_blobs(1)
        (tmp_path / "a.png").write_bytes(b"new")
        with AnsweringWorker(server.url, queue):
            reader.join(30)
    assert [(r.type, r.code) for r in got] == [("failed", "media_not_found")]


def test_caption_sends_again_what_lost_its_media(server, queue, drop_blobs, tmp_path):
    folder = tmp_path / "pics"
    folder.mkdir()
    (folder / "a.png").write_bytes(b"1")
    counts = []
    with Producer(server.url, queue, media_ttl=3600) as producer:
        run = threading.Thread(
            target=lambda: counts.append(
                caption(folder, prompt="x", outputs=tmp_path / "o.jsonl", producer=producer)
            )
        )
        run.start()
        drop_blobs(1)
        with AnsweringWorker(server.url, queue):
            run.join(30)
    assert [(c.done, c.failed) for c in counts] == [(1, 0)]


def test_a_dead_job_without_its_media_is_not_sent_again_but_says_so(
    producer, worker, redis_client, queue, left, monkeypatch, server
):
    for name, data in (("a", b"1"), ("b", b"2")):
        producer.submit(id=name, prompt="x", images=[data])
        worker.claim()
        worker.fail(name, "timeout", "too long")
    redis_client.delete(Keys(queue).blob(sha(b"1")))
    redis_client.expire(Keys(queue).blob(sha(b"2")), 10)
    with pytest.raises(RetryErrors, match=f"job a: its blob:{sha(b'1')[:12]}") as caught:
        producer.retry_dead()
    assert (caught.value.sent, list(caught.value.errors)) == (["b"], ["a"])
    assert left(b"2") > DAY - 100
    assert [letter.id for letter in producer.dead()] == ["a"]
    args = ["dead", "retry", "--all", "--redis-url", server.url, "--queue", queue]
    result = CliRunner().invoke(app, args)
    assert result.exit_code == 2
    assert "error[media_not_found]: job a:" in result.output
    worker.claim()
    worker.finish("b")
