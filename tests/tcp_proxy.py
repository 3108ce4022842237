"""A TCP proxy in front of a server: it loses replies, delays and cuts when told to."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit


class TcpProxy:
    """Forwards bytes both ways; ``url`` is the Redis URL through it.

    ``swallow(mark)``: the next request with ``mark`` in it reaches the server, its reply does
    not come back, and its connection is cut. ``delay(mark, seconds)``: the next such request is
    held up. ``cut()`` ends all connections.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname or "127.0.0.1", parts.port or 6379)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._marks: list[tuple[bytes, float | None]] = []  # None: swallow, else seconds
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._lock = threading.Lock()
        self.swallowed = 0
        self.delayed = 0
        self.delaying = 0
        port = self._listener.getsockname()[1]
        self.url = f"redis://127.0.0.1:{port}/0"
        threading.Thread(target=self._accept, daemon=True).start()

    def swallow(self, mark: str) -> None:
        with self._lock:
            self._marks.append((mark.encode(), None))

    def delay(self, mark: str, seconds: float) -> None:
        with self._lock:
            self._marks.append((mark.encode(), seconds))

    def cut(self) -> int:
        """How many connections it ended."""
        with self._lock:
            pairs = list(self._pairs)
        for pair in pairs:
            self._end(pair)
        return len(pairs)

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
                if up and self._swallows(data):
                    muted.set()
                if not up and muted.is_set():
                    break  # the server has answered, so it has done it
                sink.sendall(data)
        self._end(pair)

    def _swallows(self, data: bytes) -> bool:
        """True if the reply to this request shall be lost; waits first if it shall be late."""
        with self._lock:
            found = next((item for item in self._marks if item[0] in data), None)
            if found is None:
                return False
            self._marks.remove(found)
            seconds = found[1]
            if seconds is None:
                self.swallowed += 1
                return True
            self.delaying += 1
        time.sleep(seconds)
        with self._lock:
            self.delaying -= 1
            self.delayed += 1
        return False

    def _end(self, pair: tuple[socket.socket, socket.socket]) -> None:
        with self._lock:
            self._pairs.discard(pair)
        for end in pair:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
