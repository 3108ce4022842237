"""A TCP proxy in front of a server: it loses replies, delays, slows and cuts when told to."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from types import TracebackType
from typing import Final, Literal, Self
from urllib.parse import urlsplit

PIECES_PER_SECOND: Final = 50
"""On a slow link."""

Action = Literal["swallow", "delay", "cut request", "cut reply"]


class TcpProxy:
    """Forwards bytes both ways; ``url`` is the Redis URL through it.

    ``swallow(mark)``: the next request with ``mark`` in it reaches the server, its reply does
    not come back, and its connection is cut. ``delay(mark, seconds)``: the next such request is
    held up. ``cut_request(mark)``: only the first half of the next such request reaches the
    server, ``cut_reply(mark)``: only the first half of its reply comes back; then its connection is
    cut. ``slow(rate, seconds)``: for so long each connection carries ``rate`` bytes a second each
    way, in small pieces. ``cut()`` ends all connections.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname or "127.0.0.1", parts.port or 6379)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._marks: list[tuple[bytes, Action, float]] = []  # with the seconds of a delay
        self._rate = 0
        self._slow_until = 0.0
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._lock = threading.Lock()
        self.swallowed = 0
        self.delayed = 0
        self.delaying = 0
        self.cut_requests = 0
        self.cut_replies = 0
        port = self._listener.getsockname()[1]
        self.url = f"redis://127.0.0.1:{port}/0"
        threading.Thread(target=self._accept, daemon=True).start()

    def swallow(self, mark: str) -> None:
        self._await(mark, "swallow")

    def delay(self, mark: str, seconds: float) -> None:
        self._await(mark, "delay", seconds)

    def cut_request(self, mark: str) -> None:
        self._await(mark, "cut request")

    def cut_reply(self, mark: str) -> None:
        self._await(mark, "cut reply")

    def slow(self, rate: int, seconds: float) -> None:
        with self._lock:
            self._rate, self._slow_until = rate, time.monotonic() + seconds

    def _await(self, mark: str, action: Action, seconds: float = 0.0) -> None:
        with self._lock:
            self._marks.append((mark.encode(), action, seconds))

    @property
    def late(self) -> bool:
        """True while requests are held up, or the link is slow."""
        return self.delaying > 0 or time.monotonic() < self._slow_until

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
            fate: list[Action] = []  # of the next reply
            for source, sink, up in ((near, far, True), (far, near, False)):
                threading.Thread(
                    target=self._pump, args=(pair, source, sink, fate, up), daemon=True
                ).start()

    def _pump(
        self,
        pair: tuple[socket.socket, socket.socket],
        source: socket.socket,
        sink: socket.socket,
        fate: list[Action],
        up: bool,
    ) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 20):
                action = self._action(data) if up else None
                if action == "cut request":
                    self._send(sink, data[: len(data) // 2])
                    break
                if action is not None:
                    fate.append(action)
                if not up and fate:  # the server has answered, so it has done it
                    if fate[0] == "cut reply":
                        self._send(sink, data[: len(data) // 2])
                    break
                self._send(sink, data)
        self._end(pair)

    def _send(self, sink: socket.socket, data: bytes) -> None:
        """All at once, or piece by piece while the link is slow."""
        while data and (rate := self._rate) and time.monotonic() < self._slow_until:
            size = max(1, rate // PIECES_PER_SECOND)
            sink.sendall(data[:size])
            data = data[size:]
            time.sleep(1 / PIECES_PER_SECOND)
        sink.sendall(data)

    def _action(self, data: bytes) -> Action | None:
        """What shall happen to this request, or its reply; waits first if it shall be late."""
        with self._lock:
            found = next((item for item in self._marks if item[0] in data), None)
            if found is None:
                return None
            self._marks.remove(found)
            _, action, seconds = found
            if action != "delay":
                self.swallowed += action == "swallow"
                self.cut_requests += action == "cut request"
                self.cut_replies += action == "cut reply"
                return action
            self.delaying += 1
        time.sleep(seconds)
        with self._lock:
            self.delaying -= 1
            self.delayed += 1
        return None

    def _end(self, pair: tuple[socket.socket, socket.socket]) -> None:
        with self._lock:
            self._pairs.discard(pair)
        for end in pair:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
