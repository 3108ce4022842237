"""What is said of a worker that ended."""

from __future__ import annotations

import pytest

from mlxq_producer.cli import demo
from mlxq_producer.errors import WorkerFailed
from mlxq_producer.pipeline import embedded_queue
from mlxq_producer.pipeline.embedded_queue import RESTARTS, EmbeddedQueue
from mlxq_producer.processes import ChildProcess
from mlxq_producer.worker_command import worker_end
from mlxq_schemas.errors import EXIT_DEVICE_FAILED


def test_a_device_that_failed_is_named():
    assert "device" in worker_end(EXIT_DEVICE_FAILED)
    assert f"status {EXIT_DEVICE_FAILED}" in worker_end(EXIT_DEVICE_FAILED)
    assert worker_end(1) == "the worker ended with status 1"


@pytest.fixture
def ending(monkeypatch, tmp_path):
    """Workers that end at once with the status of a sick device."""
    started: list[ChildProcess] = []

    def start(command, log, environment=None):
        words = ["/bin/sh", "-c", f"exit {EXIT_DEVICE_FAILED}"]
        started.append(ChildProcess(words, log, environment))
        return started[-1]

    monkeypatch.setattr(embedded_queue, "ChildProcess", start)
    monkeypatch.setattr(embedded_queue, "worker_command", lambda *words: list(words))
    yield start
    for child in started:
        child.stop()


def test_the_embedded_queue_says_so_at_each_end_and_then_gives_up(ending, tmp_path, caplog):
    queue = EmbeddedQueue(None, [])
    queue._log, queue._environment = tmp_path / "worker.log", {}
    queue._start_worker()
    for n in range(RESTARTS):
        queue._worker.wait(60)
        queue.check()
        assert len(caplog.messages) == n + 1
        assert "device (GPU or memory) failed" in caplog.messages[n]
    queue._worker.wait(60)
    with pytest.raises(WorkerFailed, match="device"):
        queue.check()


def test_the_demo_says_so(ending, tmp_path):
    child = ending([], tmp_path / "worker.log")
    assert "device" in demo._failed("worker", child, child.wait(60)).message
    assert "producer ended" in demo._failed("producer", child, 1).message
