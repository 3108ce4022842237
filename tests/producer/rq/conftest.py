"""An RQ of its own on the session's server, and real workers for it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from rq import Queue

from worker_process import WorkerProcess

TESTS = Path(__file__).parents[2]
RQ_DATABASE = 5

Start = Callable[..., Any]


@pytest.fixture
def rq_url(server) -> str:
    """RQ lives in another database than mlxq."""
    return f"redis://127.0.0.1:{server.port}/{RQ_DATABASE}"


@pytest.fixture
def rq_client(rq_url) -> Iterator[redis.Redis]:
    client = redis.Redis.from_url(rq_url)
    client.flushdb()
    yield client
    client.flushdb()
    client.close()


@pytest.fixture
def rq_queue(rq_client) -> Queue:
    return Queue("pictures", connection=rq_client, serializer="json")


@pytest.fixture
def environment(server, queue) -> dict[str, str]:
    path = os.pathsep.join([str(TESTS), *(entry for entry in sys.path if entry)])
    return {**os.environ, "PYTHONPATH": path, "MLXQ_REDIS_URL": server.url, "MLXQ_QUEUE": queue}


class RqProcess:
    """``rq ...`` as a child; its log is in ``log``."""

    def __init__(self, log: Path, environment: dict[str, str], *arguments: str) -> None:
        self._path = log
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "rq.cli", *arguments],
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment,
            )

    @property
    def log(self) -> str:
        return self._path.read_text(errors="replace")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()


@pytest.fixture
def rq(rq_url, rq_client, environment, tmp_path) -> Iterator[Start]:
    """Starts ``rq COMMAND ...`` on the test's RQ."""
    children: list[RqProcess] = []

    def start(command: str, *arguments: str) -> RqProcess:
        log = tmp_path / f"rq-{len(children)}.log"
        options = ("--url", rq_url, "-S", "json", "--path", str(TESTS))
        child = RqProcess(log, environment, command, *options, *arguments)
        children.append(child)
        return child

    yield start
    for child in children:
        child.close()


@pytest.fixture
def intake(rq) -> Start:
    """Starts an intake on ``pictures``."""
    return lambda *options: rq("worker", "-w", "mlxq_producer.rq.Intake", *options, "pictures")


@pytest.fixture
def mlxq_worker(server, queue, tmp_path) -> Iterator[Start]:
    """Starts an mlxq worker that echoes prompts."""
    children: list[WorkerProcess] = []

    def start(*options: str) -> WorkerProcess:
        log = tmp_path / f"worker-{len(children)}.log"
        where = ("--redis-url", server.url, "--queue", queue)
        child = WorkerProcess(log, *where, "--model", "noop:", *options)
        children.append(child)
        child.wait_ready()
        return child

    yield start
    for child in children:
        child.close()
