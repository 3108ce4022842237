"""The real processes of a run: a server that keeps its data, workers, and producers."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

PATIENCE: Final = 60.0
TESTS: Final = Path(__file__).resolve().parent.parent


def spawn(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    """A child whose output is appended to ``log``, and which can import the tests."""
    paths = [str(TESTS), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    with log.open("ab") as output:
        return subprocess.Popen(command, stdout=output, stderr=output, env=environment)


def _shifted(seconds: float, module: str) -> list[str]:
    """The command of a module whose clock is wrong."""
    return [sys.executable, "-P", str(TESTS / "shifted_clock.py"), str(seconds), module]


class Server:
    """A server with an append-only file, synced at every write: what it answered, it keeps."""

    def __init__(self, binary: Path, folder: Path) -> None:
        self._folder = folder
        self._binary = binary
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        # A view from outside, past the proxies; it repeats nothing and waits for nobody.
        self.client = redis.Redis.from_url(
            self.url, retry=Retry(NoBackoff(), 0), socket_timeout=PATIENCE
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it has read its file."""
        options = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "save": "",
            "appendonly": "yes",
            "appendfsync": "always",
            "maxmemory-policy": "noeviction",
            "stream-node-max-entries": "10",  # so that whoever trims too much does some harm
            "dir": str(self._folder),
        }
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        self._process = spawn([str(self._binary), *words], self._folder / "server.log")
        end = time.monotonic() + PATIENCE
        while True:
            try:
                self.client.ping()
            except (redis.RedisError, OSError):
                if time.monotonic() > end or self._process.poll() is not None:
                    raise
                time.sleep(0.02)
            else:
                return

    def stop(self, number: signal.Signals) -> None:
        """End it by a signal."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(PATIENCE)
            self._process = None


class WorkerProcess:
    """``mlxq worker`` with the bundled model; its clock is ``shift`` seconds ahead."""

    def __init__(self, name: str, options: list[str], folder: Path, shift: float = 0.0) -> None:
        self.name = name
        self._log = folder / f"{name}.log"
        if shift:
            command = _shifted(shift, "mlxq_worker")
        else:
            command = [sys.executable, "-m", "mlxq_producer", "worker"]
        command += ["--name", name, *options]
        self._process = spawn(command, self._log)
        self._ready = False

    @property
    def ready(self) -> bool:
        """True once it takes jobs."""
        self._ready = self._ready or b" ready " in self._log.read_bytes()
        return self._ready

    @property
    def status(self) -> int | None:
        """Exit status, or None while it runs."""
        return self._process.poll()

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self) -> int:
        return self._process.wait(PATIENCE)

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()


class ProducerProcess:
    """``chaos.producing``; after a kill it goes on where its diary ends."""

    def __init__(self, name: str, options: list[str], folder: Path, shift: float = 0.0) -> None:
        self.diary = folder / f"{name}.diary"
        self._log = folder / f"{name}.log"
        own = ["--name", name, "--diary", str(self.diary)]
        # `=`: a negative number looks like an option.
        own.append(f"--shift={shift}")
        self._command = [*_shifted(shift, "chaos.producing"), *own, *options]
        self._process = spawn(self._command, self._log)

    @property
    def status(self) -> int | None:
        return self._process.poll()

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def kill_and_restart(self) -> None:
        self.close()
        self._process = spawn(self._command, self._log)

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
