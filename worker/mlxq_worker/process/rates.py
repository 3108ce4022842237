"""How fast a count grows."""

from __future__ import annotations

from collections import deque


class Rate:
    """Growth a second over the last ``window`` seconds, from totals told now and then."""

    def __init__(self, window: float = 30.0) -> None:
        self._window = window
        self._points: deque[tuple[float, int]] = deque()

    def update(self, total: int, now: float) -> float:
        """Note a total at ``now`` (seconds of any clock); the rate since the window began."""
        self._points.append((now, total))
        while len(self._points) > 2 and self._points[1][0] <= now - self._window:
            self._points.popleft()
        began, first = self._points[0]
        return (total - first) / (now - began) if now > began else 0.0
