"""Preparations that hang: neither their own jobs nor others wait for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import redis

from mlxq_producer import Producer
from mlxq_schemas import Job, Keys
from mlxq_worker.backend import Backend, BlobReader
from mlxq_worker.config import WorkerConfig
from mlxq_worker.engine.request import Request
from mlxq_worker.noop import EchoGenerator
from mlxq_worker.process import crew as module
from mlxq_worker.process import prepare_pool
from mlxq_worker.process.crew import Crew
from mlxq_worker.process.signals import StopSignals
from mlxq_worker.process.worker import Worker
from worker_process import PATIENCE, eventually


class Mount:
    """A worker in this process whose preparation of prompts that say so hangs until freed."""

    def __init__(self, url: str, queue: str, threads: int = 1) -> None:
        self.free = threading.Event()
        self.hanging: list[str] = []
        self.signals = StopSignals()
        config = WorkerConfig(
            redis_url=url,
            queue=queue,
            model="noop:",
            prepare_threads=threads,
            grace=0.5,
            lease=2.0,
        )
        backend = Backend(EchoGenerator(4), self.prepare, frozenset({"noop"}), "noop", 4)
        self.worker = Worker(config, self.signals)
        self.worker._engine._build = lambda: backend
        self.thread = threading.Thread(target=self.worker.run, daemon=True)
        self.thread.start()

    def prepare(self, job: Job, read_blob: BlobReader) -> Request:
        prompt = job.prompt or ""
        if prompt.startswith("hang"):
            self.hanging.append(job.id)
            self.free.wait(PATIENCE)
        return Request(job.id, prompt=prompt, sampling=job.sampling)

    def end(self) -> None:
        self.free.set()
        self.signals.count = 1
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()


@pytest.fixture
def mount(server, queue: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mount]:
    monkeypatch.setattr(module, "UNWANTED_PATIENCE", 0.05)
    monkeypatch.setattr(prepare_pool, "LOOK", 0.02)
    mount = Mount(server.url, queue)
    yield mount
    mount.end()


def test_a_cancel_a_deadline_and_a_timeout_end_jobs_that_hang(
    mount: Mount, producer: Producer
) -> None:
    producer.submit(id="cancelled", prompt="hang")
    eventually(lambda: mount.hanging == ["cancelled"], "a hang")
    assert producer.cancel("cancelled") == "asked"
    assert producer.result("cancelled", wait=PATIENCE).type == "cancelled"
    producer.submit(id="late", prompt="hang", deadline=time.time() + 1)
    assert producer.result("late", wait=PATIENCE).type == "expired"
    producer.submit(id="long", prompt="hang", timeout=0.3)
    result = producer.result("long", wait=PATIENCE)
    assert (result.type, result.code) == ("failed", "timeout")
    assert mount.hanging == ["cancelled", "late", "long"]
    assert producer.submit(id="good", prompt="hello") == "good"
    assert producer.result("good", wait=PATIENCE).text == "hello"
    mount.free.set()
    producer.submit(id="after", prompt="hang on")
    assert producer.result("after", wait=PATIENCE).text == "hang on"
    for job_id, end in (("cancelled", "cancelled"), ("late", "expired"), ("long", "failed")):
        kinds = [event.type for event in producer.follow(job_id)]
        assert kinds == ["queued", "started", end]  # what came late is ignored


def test_jobs_behind_one_that_hangs_keep_their_limits(mount: Mount, producer: Producer) -> None:
    producer.submit(id="first", prompt="hang")
    eventually(lambda: mount.hanging == ["first"], "a hang")
    producer.submit(id="late", prompt="hello", deadline=time.time() + 0.5)
    producer.submit(id="cancelled", prompt="hello")
    producer.submit(id="bad", prompt="hello", model="other")
    assert producer.result("bad", wait=PATIENCE).code == "unknown_model"
    producer.cancel("cancelled")
    assert producer.result("cancelled", wait=PATIENCE).type == "cancelled"
    assert producer.result("late", wait=PATIENCE).type == "expired"
    mount.free.set()
    assert producer.result("first", wait=PATIENCE).text == "hang"


def test_jobs_behind_one_that_hangs_for_long_are_done(
    mount: Mount, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.2)
    producer.submit(id="first", prompt="hang")
    eventually(lambda: mount.hanging == ["first"], "a hang")
    producer.submit(id="second", prompt="hello")
    assert producer.result("second", wait=PATIENCE).text == "hello"
    mount.free.set()
    assert producer.result("first", wait=PATIENCE).text == "hang"


def test_when_all_hang_no_jobs_are_taken_and_those_not_begun_go_back(
    mount: Mount, producer: Producer, redis_client: redis.Redis, queue: str, monkeypatch
) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.1)
    names = [f"h{n}" for n in range(1 + prepare_pool.SPARES)]
    for name in names:
        producer.submit(id=name, prompt="hang")
    producer.submit(id="other", prompt="hello")
    keys = Keys(queue)
    eventually(lambda: redis_client.hget(keys.job("other"), "uncounted") == b"1", "a hand-back")
    assert mount.hanging == names
    assert mount.worker._queue.problem == "preparation_hangs"
    assert mount.worker._health()["state"] == "blocked"
    mount.free.set()
    assert producer.result("other", wait=PATIENCE).text == "hello"
    for name in names:
        assert producer.result(name, wait=PATIENCE).text == "hang"
    assert mount.worker._health()["state"] == "ready"


def test_a_crew_keeps_its_size_and_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.0)
    free, begun = threading.Event(), threading.Semaphore(0)

    def work(task: int) -> None:
        begun.release()
        free.wait(PATIENCE)

    crew = Crew[int]("test", 2, work, spares=1)
    for task in range(6):
        crew.put(task)
    assert all(begun.acquire(timeout=10) for _ in range(2))
    eventually(lambda: crew.look() or begun.acquire(blocking=False), "a spare")
    eventually(lambda: crew.look() or crew.stuck, "all hang")
    assert not begun.acquire(timeout=0.05)
    assert crew.take_back() == [3, 4, 5]
    free.set()
    eventually(lambda: crew.look() or len(crew._hands) == 2, "its size again")
    assert not crew.stuck
    crew.put(7)
    assert begun.acquire(timeout=10)
    crew.close()
    eventually(lambda: not crew._hands, "the end")
