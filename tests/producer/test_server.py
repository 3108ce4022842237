"""``mlxq server`` as a real process: what it keeps, and how it ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from mlxq_producer import Producer, embedded
from worker_process import eventually

WAIT = 120


@contextmanager
def started(port: int, folder: Path) -> Generator[subprocess.Popen[str]]:
    """The command, which does not outlive a test that fails."""
    words = ["server", "--port", str(port), "--data-dir", str(folder)]
    command = [sys.executable, "-m", "mlxq_producer", *words]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.communicate(timeout=WAIT)


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def silent(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


@pytest.fixture
def port() -> int:
    return embedded._free_port()


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, -9)]
)
def test_it_ends_in_order_and_the_queue_outlives_it(tmp_path, port, number, status):
    folder = tmp_path / "with blanks" / "data"
    with started(port, folder) as process:
        url = f"redis://127.0.0.1:{port}/0"
        assert first_line(process) == f"{url}, its data in {folder}"
        assert first_line(process) == f"next: MLXQ_REDIS_URL={url} mlxq worker"
        with redis.Redis.from_url(url) as client:
            settings = client.config_get("*")
            assert settings["maxmemory-policy"] == "noeviction"
            assert settings["appendonly"] == "yes"
            assert settings["stream-node-max-bytes"] == "512"
            assert settings["bind"] == "127.0.0.1"
            with Producer(client=client, queue="q") as producer:
                job_id = producer.submit(prompt="x")
        process.send_signal(number)
        _, error = process.communicate(timeout=WAIT)
        assert (process.returncode, error) == (status, "")
    eventually(lambda: silent(port))
    with started(port, folder) as process:
        first_line(process)
        with Producer(url, "q") as producer:
            assert sum(producer.status().depth.values()) == 1
            assert producer.cancel(job_id) == "cancelled"


def refused(port: int, folder: Path) -> str:
    with started(port, folder) as process:
        out, error = process.communicate(timeout=WAIT)
    assert (process.returncode, out) == (2, "")
    assert "Traceback" not in error
    return error


def test_a_port_or_folder_that_another_server_has(tmp_path, port, server):
    assert f"port {server.port} is taken" in refused(server.port, tmp_path)
    with started(port, tmp_path / "one") as process:
        first_line(process)
        error = refused(embedded._free_port(), tmp_path / "one")
        assert f"another server keeps its data in {tmp_path / 'one'}" in error
        process.terminate()
        process.communicate(timeout=WAIT)


def test_a_folder_that_is_a_file(tmp_path, port):
    (tmp_path / "file").write_text("")
    assert f"cannot write to {tmp_path / 'file'}: " in refused(port, tmp_path / "file")


def test_a_server_that_is_killed_ends_the_command_with_its_log(tmp_path, port):
    with started(port, tmp_path) as process:
        first_line(process)
        with redis.Redis(port=port) as client:
            os.kill(client.info()["process_id"], signal.SIGKILL)
        _, error = process.communicate(timeout=WAIT)
        assert process.returncode == 4
        assert error.startswith("error[queue_unavailable]: ")
        assert "Ready to accept connections" in error
