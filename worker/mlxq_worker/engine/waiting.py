"""The order in which requests are admitted: by age, with a head start for priority."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

from mlxq_worker.engine.row import Row

HEAD_START = 256
"""Steps that one unit of priority is worth: a row of priority 1 passes those that have waited
fewer than this many steps longer, so a low priority waits, but never for ever."""


class WaitingLine:
    """Rows not yet admitted. A step is one ``next()`` of the generator."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Row]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Row]:
        return (row for _, _, row in self._heap)

    def add(self, row: Row) -> None:
        """Queue a row; one that comes back keeps the place of its age."""
        turn = row.came - HEAD_START * row.request.priority
        heapq.heappush(self._heap, (turn, row.uid, row))

    def peek(self) -> Row:
        """The row whose turn it is."""
        return self._heap[0][2]

    def next_up(self, count: int) -> list[Row]:
        """The rows whose turn comes next, in order."""
        found: list[Row] = []
        # A heap's parent comes before its children: no need to look at all of it.
        places = [(self._heap[0][:2], 0)] if self._heap else []
        while places and len(found) < count:
            place = heapq.heappop(places)[1]
            found.append(self._heap[place][2])
            for child in range(2 * place + 1, min(2 * place + 3, len(self._heap))):
                heapq.heappush(places, (self._heap[child][:2], child))
        return found

    def pop(self) -> Row:
        """Take the row whose turn it is."""
        return heapq.heappop(self._heap)[2]

    def drop(self, chosen: Callable[[Row], bool]) -> None:
        """Forget some rows."""
        self._heap = [item for item in self._heap if not chosen(item[2])]
        heapq.heapify(self._heap)
