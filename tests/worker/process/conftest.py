"""Worker processes for tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from mlxq_producer import Producer
from mlxq_producer.embedded import EmbeddedServer
from tcp_proxy import TcpProxy
from worker_process import StartWorker, WorkerProcess


@pytest.fixture
def start_worker(server: EmbeddedServer, queue: str, tmp_path: Path) -> Iterator[StartWorker]:
    """Starts ready workers, as ``start_worker("--lease", "1")``; model None: the bundled one."""
    started: list[WorkerProcess] = []

    def start(
        *options: str,
        model: str | None = "noop:",
        url: str = server.url,
        wait: bool = True,
        **how: Sequence[str],
    ) -> WorkerProcess:
        log = tmp_path / f"worker-{len(started)}.log"
        common = ["--redis-url", url, "--queue", queue, *(["--model", model] if model else [])]
        worker = WorkerProcess(log, *common, *options, **how)
        started.append(worker)
        if wait:
            worker.wait_ready()
        return worker

    yield start
    for worker in started:
        worker.close()


@pytest.fixture
def producer(server: EmbeddedServer, queue: str) -> Iterator[Producer]:
    with Producer(server.url, queue=queue) as producer:
        yield producer


@pytest.fixture
def proxy(server: EmbeddedServer) -> Iterator[TcpProxy]:
    with TcpProxy(server.url) as proxy:
        yield proxy
