"""What a generator asks of a device that fails: less, for a while; and when it gives up."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

import mlx.core as mx

from mlxq_schemas.errors import DeviceFailed, GenerationFailed
from mlxq_worker.engine.row import Alone, Row
from mlxq_worker.models.device import MAX_FAULTS, Fault, device_fault

log = logging.getLogger(__name__)

SMALLEST_SLICE: Final = 64
"""Prompt tokens: a slice is not made smaller for a device that fails."""

PATIENCE: Final = 64
"""Good steps before a little more is tried again; twice as many each time that this fails."""

MOST_PATIENCE: Final = 4096


class Recovery:
    """How much work the device gets at once.

    ``rows``: most rows in prefill and decode now; ``slice``: most prompt tokens of a slice now;
    both grow back to what they began with. ``errors`` counts all device errors.
    """

    def __init__(self, max_rows: int, prefill_step: int) -> None:
        self._max_rows, self._max_slice = max_rows, prefill_step
        self.rows, self.slice = max_rows, prefill_step
        self.errors = 0
        self._in_a_row = 0
        self._good = 0
        self._grew = False
        self._held = 0
        self._patience = PATIENCE
        self._tokens = 0

    def good(self, tokens: int) -> None:
        """A step has been read without an error, and gave so many tokens, one a row."""
        self._in_a_row = 0
        self._tokens += tokens
        self._held = max(self._held, tokens)
        if self.rows == self._max_rows and self.slice == self._max_slice:
            self._patience = PATIENCE
            return
        self._good += 1
        if self._good >= self._patience:
            self._good, self._grew = 0, True
            self.rows = min(self.rows + 1, self._max_rows)
            self.slice = min(self.slice * 2, self._max_slice)

    def fault(
        self, kind: Fault, why: str, running: Sequence[Row], waiting: Sequence[Row]
    ) -> GenerationFailed | None:
        """The device failed while some rows ran. What their only row is to end with, if any.

        Raises :class:`DeviceFailed` when less work does not help and the errors do not end.
        """
        self.errors += 1
        less = self._ask_less(kind, len(running))
        log.warning(
            "device error",
            extra={"reason": why, "running": len(running), "rows": self.rows, "slice": self.slice},
        )
        if less and kind is Fault.MEMORY:
            return None
        self._in_a_row += 1
        if len(running) == 1 and not less and self._is_too_large(kind, running[0], waiting):
            return GenerationFailed(
                f"the worker has too little memory for this job, even alone ({why}): shorten its "
                "prompt, give it fewer or smaller pictures, or start a worker with more memory"
            )
        if self._in_a_row > MAX_FAULTS:
            raise DeviceFailed(
                f"the device failed {self._in_a_row} times in a row ({kind.value}: {why}): look at "
                "its driver, and at what else uses its memory, then start the worker again"
            )
        return None

    def _ask_less(self, kind: Fault, running: int) -> bool:
        """Halve what is asked of the device, or go back to the rows that it held since the last
        error; False if it is at its least."""
        before = (self.rows, self.slice)
        if self._grew:
            self._patience = min(2 * self._patience, MOST_PATIENCE)
        self._good, self._grew = 0, False
        self.slice = max(self.slice // 2, min(SMALLEST_SLICE, self.slice))
        if kind is Fault.MEMORY and running:
            held = self._held if self._held < running else 0
            self.rows = max(1, min(self.rows, max(held, running // 2)))
        self._held = 0
        return (self.rows, self.slice) != before

    def _is_too_large(self, kind: Fault, row: Row, waiting: Sequence[Row]) -> bool:
        """True if a row has failed alone as often as is survived, with no token of its own in
        between, while others got theirs, and if it is the only one of that kind."""
        if not _is_stuck(row):
            row.alone = Alone(self._tokens, len(row.tokens))
        alone = row.alone
        if alone is None or kind is not Fault.MEMORY:
            return False
        alone.times += 1
        others_go_on = self._tokens > alone.others and not any(map(_is_stuck, waiting))
        return alone.times >= MAX_FAULTS and others_go_on


def _is_stuck(row: Row) -> bool:
    """True for a row that failed alone and got no token since."""
    return row.alone is not None and row.alone.tokens == len(row.tokens)


def drain() -> None:
    """Wait for what is still queued, all of it given up, so that its errors do not meet others."""
    try:
        mx.synchronize()
    except Exception as error:
        if device_fault(error) is None:
            raise
