"""What of the queued work is known to be good.

Work that fails is noticed by whatever uses the stream next, and only there. So what was computed
is proved by a later step: one that was queued behind it, was read without an error, and after
which the stream took more work without one.
"""

from __future__ import annotations

import mlx.core as mx


class Proof:
    """Counts the steps of one stream. ``proved`` is the last step up to which all work is good."""

    def __init__(self) -> None:
        self._queued = 0
        self._read = 0
        self.proved = 0

    @property
    def coming(self) -> int:
        """The step that is queued next, which proves what is queued now."""
        return self._queued + 1

    def step(self) -> int:
        """A step is queued; its number."""
        self._queued += 1
        return self._queued

    def read(self, step: int) -> None:
        """What a step gave has been read. The one read before it is proved: the stream has been
        used since."""
        if step > self._read:
            self.proved, self._read = self._read, step

    def synchronise(self) -> None:
        """Wait until all work is done. Raises what the device met."""
        mx.synchronize()
        self.proved = self._read = self.step()
