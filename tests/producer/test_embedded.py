"""The embedded server: starts, answers, ends, also with its parent."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from mlxq_producer import EmbeddedServer, embedded
from mlxq_producer.embedded import find_binary
from mlxq_producer.processes import ChildProcess
from mlxq_schemas.errors import ConfigError, QueueUnavailable


def answers(port: int) -> bool:
    with redis.Redis(port=port, socket_timeout=5, retry=Retry(NoBackoff(), 0)) as client:
        try:
            return bool(client.ping())
        except redis.ConnectionError:
            return False


def until_silent(port: int) -> None:
    deadline = time.monotonic() + 30
    while answers(port):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_it_answers_and_then_is_gone_with_its_files():
    with EmbeddedServer() as server:
        client = redis.Redis.from_url(server.url)
        assert client.ping()
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert client.config_get("appendonly") == {"appendonly": "no"}
        folder = Path(client.config_get("dir")["dir"])
        pid = int(client.info("server")["process_id"])
        client.close()
        assert folder.is_dir()
    assert not folder.exists()
    assert not answers(server.port)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_data_in_a_folder_outlives_it(tmp_path):
    for expected in (None, b"1"):
        with (
            EmbeddedServer(data_dir=tmp_path) as server,
            redis.Redis.from_url(server.url) as client,
        ):
            assert client.get("kept") == expected
            client.set("kept", "1")


def test_stop_and_start_may_be_repeated():
    server = EmbeddedServer()
    server.stop()
    assert server.start() is server.start()
    assert answers(server.port)
    server.stop()
    server.stop()


def test_it_ends_when_its_parent_is_killed():
    code = (
        "import sys; from mlxq_producer import EmbeddedServer\n"
        "server = EmbeddedServer().start(); print(server.port, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        port = int(parent.stdout.readline())
        assert answers(port)
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    until_silent(port)


def test_a_port_that_was_taken_meanwhile_is_left_to_its_owner(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ports = iter([taken.getsockname()[1], embedded._free_port()])
        monkeypatch.setattr(embedded, "_free_port", lambda: next(ports))
        with EmbeddedServer() as server:
            assert server.port != taken.getsockname()[1]
            assert answers(server.port)


def test_a_foreign_server_on_the_port_is_not_taken_for_ours(server, monkeypatch):
    ports = iter([server.port, embedded._free_port()])
    monkeypatch.setattr(embedded, "_free_port", lambda: next(ports))
    with EmbeddedServer() as own:
        assert own.port != server.port


def test_the_order_in_which_a_server_program_is_looked_for(tmp_path, monkeypatch):
    program = tmp_path / "redis-server"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_binary() == program
    assert find_binary("redis-server") == program
    monkeypatch.setenv("PATH", "")
    assert find_binary().name == "valkey-server"
    monkeypatch.setattr(embedded.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"mlxq\[embedded\]"):
        find_binary()
    with pytest.raises(ConfigError, match="not a program"):
        find_binary(tmp_path / "nothing")


def test_a_program_that_ends_at_once_is_reported_with_its_words(tmp_path):
    program = tmp_path / "server"
    program.write_text("#!/bin/sh\necho no can do\nexit 1\n")
    program.chmod(0o755)
    with pytest.raises(QueueUnavailable, match="no can do"):
        EmbeddedServer(program).start()


def test_a_child_process_tells_its_status_and_its_words(tmp_path):
    with ChildProcess(["/bin/sh", "-c", "echo words; exit 3"], tmp_path / "log") as child:
        assert child.wait(30) == 3
        assert child.poll() == 3
        assert child.log_tail() == "words"


def test_a_child_process_is_asked_to_end_before_it_is_killed(tmp_path):
    script = "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.01; done"
    with ChildProcess(["/bin/sh", "-c", script], tmp_path / "log") as child:
        deadline = time.monotonic() + 30
        while child.log_tail() != "up":
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert child.stop() == 0
    assert child.log_tail() == "up\nbye"
