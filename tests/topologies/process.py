"""One server process on loopback, started, killed and started again."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import time
from collections.abc import Mapping
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from mlxq_producer.processes import ChildProcess

START_SECONDS = 30.0
ADMIN = {"username": "admin", "password": "admin-secret"}
"""May do everything, on every server that a test starts."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """A server (with a ``sentinel_password``: a sentinel) with its files in ``folder``.

    ``options`` is its configuration; its port is chosen here. ``tls``: settings of a client's
    connection over TLS; then it has no plain port.
    """

    _numbers = itertools.count()

    def __init__(
        self,
        program: Path,
        folder: Path,
        options: Mapping[str, str],
        *,
        acl: str = "",
        sentinel_password: str | None = None,
        tls: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder / f"server-{next(self._numbers)}"
        self.folder.mkdir()
        self.port = free_port()
        self.pid = 0
        self._tls = tls
        sentinel = sentinel_password is not None
        self._login = {"password": sentinel_password} if sentinel else ADMIN
        self._command = [str(program), str(self.folder / "server.conf")]
        self._command += ["--sentinel"] if sentinel else []
        self._process: ChildProcess | None = None
        self._write(options, acl, sentinel)
        self.start()

    def _write(self, options: Mapping[str, str], acl: str, sentinel: bool) -> None:
        ports = {"port": str(self.port)}
        if self._tls is not None:
            ports = {"port": "0", "tls-port": str(self.port)}
        lines = {"bind": "127.0.0.1", "dir": str(self.folder), **ports}
        if not sentinel:
            users = self.folder / "users.acl"
            users.write_text(f"user admin on >{ADMIN['password']} ~* &* +@all\n{acl}")
            lines |= {"aclfile": str(users), "save": '""', "maxmemory-policy": "noeviction"}
            lines |= {"masteruser": ADMIN["username"], "masterauth": ADMIN["password"]}
        text = "".join(f"{name} {value}\n" for name, value in {**lines, **options}.items())
        (self.folder / "server.conf").write_text(text)

    def start(self) -> None:
        """Start it and wait until it answers."""
        log = self.folder / "server.log"
        self._process = ChildProcess(self._command, log)
        end = time.monotonic() + START_SECONDS
        while True:
            try:
                with self.client() as client:
                    self.pid = client.info("server")["process_id"]
                    return
            except redis.RedisError:
                if self._process.poll() is not None or time.monotonic() > end:
                    words = self._process.log_tail()
                    self.stop()
                    raise RuntimeError(f"no start: {words}") from None
                time.sleep(0.02)

    def client(self) -> redis.Redis:
        """A client that may do everything."""
        return redis.Redis(
            host="127.0.0.1",
            port=self.port,
            ssl=self._tls is not None,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=10,
            **self._login,
            **(self._tls or {}),
        )

    def kill(self) -> None:
        """End it at once, as a crash does."""
        os.kill(self.pid, signal.SIGKILL)
        self.stop()

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()
            self._process = None
