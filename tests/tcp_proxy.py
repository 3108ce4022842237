"""A TCP proxy in front of a server, which loses replies and cuts connections when told to."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit


class TcpProxy:
    """Forwards bytes both ways; ``url`` is the Redis URL through it.

    ``swallow(mark)``: the next request with ``mark`` in it reaches the server, its reply does
    not come back, and its connection is cut. ``cut()`` ends all connections.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname or "127.0.0.1", parts.port or 6379)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._marks: list[bytes] = []
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._lock = threading.Lock()
        self.swallowed = 0
        port = self._listener.getsockname()[1]
        self.url = f"redis://127.0.0.1:{port}/0"
        threading.Thread(target=self._accept, daemon=True).start()

    def swallow(self, mark: str) -> None:
        with self._lock:
            self._marks.append(mark.encode())

    def cut(self) -> None:
        with self._lock:
            pairs = list(self._pairs)
        for pair in pairs:
            self._end(pair)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self._target)
            except OSError:
                near.close()
                continue
            pair = (near, far)
            with self._lock:
                self._pairs.add(pair)
            muted = threading.Event()
            for source, sink, up in ((near, far, True), (far, near, False)):
                threading.Thread(
                    target=self._pump, args=(pair, source, sink, muted, up), daemon=True
                ).start()

    def _pump(
        self,
        pair: tuple[socket.socket, socket.socket],
        source: socket.socket,
        sink: socket.socket,
        muted: threading.Event,
        up: bool,
    ) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 20):
                if up and self._marked(data):
                    muted.set()
                if not up and muted.is_set():
                    break  # the server has answered, so it has done it
                sink.sendall(data)
        self._end(pair)

    def _marked(self, data: bytes) -> bool:
        with self._lock:
            found = next((mark for mark in self._marks if mark in data), None)
            if found is not None:
                self._marks.remove(found)
                self.swallowed += 1
        return found is not None

    def _end(self, pair: tuple[socket.socket, socket.socket]) -> None:
        with self._lock:
            self._pairs.discard(pair)
        for end in pair:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
