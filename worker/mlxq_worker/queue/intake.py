"""Reading jobs: only as many as the engine can take; the rest stays for other workers.

Places are dealt by weight, so that nothing starves: of ten, six to the most urgent stream, three
to the next and one to the last. What a stream has no job for goes to the most urgent that has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from redis.exceptions import ResponseError

from mlxq_schemas import GROUP, Keys, Priority
from mlxq_worker.queue.entry import Entry, How, parse_reply
from mlxq_worker.queue.link import Link

BLOCK_MS: Final = 1000
"""How long one read waits for a job; well below the socket timeout."""
FULL_PAUSE: Final = 0.25
"""Seconds until capacity is looked at again, unless woken."""
GROUP_PAUSE: Final = 0.1
"""Seconds after a lost group: somebody may be deleting the streams in a loop."""
PAGE: Final = 100
MAX_ROOM: Final = 1000
"""Most places dealt at once."""
WEIGHTS: Final[Mapping[Priority, int]] = {"high": 6, "normal": 3, "low": 1}
"""Places of each priority while jobs of all wait."""


class Turns:
    """Whose turn it is, by weight and evenly mixed (smooth weighted round robin)."""

    def __init__(self, weights: Mapping[str, int]) -> None:
        self._weights = dict(weights)
        self._credit = dict.fromkeys(weights, 0)

    def next(self, count: int) -> Counter[str]:
        """How many of the next ``count`` turns are whose."""
        return Counter(self._one() for _ in range(count))

    def _one(self) -> str:
        for name, weight in self._weights.items():
            self._credit[name] += weight
        chosen = max(self._credit, key=self._credit.__getitem__)  # of equals the first
        self._credit[chosen] -= sum(self._weights.values())
        return chosen


class Intake:
    """The step of the intake duty.

    ``room`` says how many jobs may be taken now. ``take`` gets the entries read; if it raises,
    they are read again. ``on_empty`` is called when the streams held nothing to read.
    """

    def __init__(
        self,
        link: Link,
        keys: Keys,
        worker: str,
        *,
        room: Callable[[], int],
        take: Callable[[Sequence[Entry]], None],
        on_empty: Callable[[], None] = lambda: None,
    ) -> None:
        self._link = link
        self._streams = keys.all_jobs()
        self._turns = Turns({keys.jobs(name): weight for name, weight in WEIGHTS.items()})
        self._worker = worker
        self._room = room
        self._take = take
        self._on_empty = on_empty
        self._seen = 0  # generation of the connection on which groups and own entries were checked
        self._first = True

    def step(self) -> float:
        """Read and hand over; the seconds to wait before the next call."""
        try:
            if self._link.open() != self._seen:
                self._start_over()
            room = self._room()
            if room <= 0:
                return FULL_PAUSE
            entries = self._read(room)
        except ResponseError as error:
            self._seen = 0  # other streams may have given entries
            if not group_is_gone(error):
                raise
            return GROUP_PAUSE
        if entries:
            self._hand_over(entries)
        return 0.0

    def reread(self) -> None:
        """Look at the own pending entries again at the next step."""
        self._seen = 0

    def _start_over(self) -> None:
        """After each reconnect: a reply may have been lost, with entries that are ours now."""
        generation = self._link.open()
        ensure_groups(self._link, self._streams)
        # Entries found at the start were left by an earlier process of this name, which died.
        for stream in self._streams:
            self._take_pending(stream, "left" if self._first else "again")
        self._first = False
        self._seen = generation

    def _take_pending(self, stream: str, how: How) -> None:
        after = "0"
        while True:
            reply = self._link.one(*self._command(PAGE), "STREAMS", stream, after)
            entries = parse_reply(reply, how)
            if not entries:
                return
            after = entries[-1].id
            self._take(entries)

    def _read(self, room: int) -> list[Entry]:
        """Up to ``room`` entries, the most urgent first; waits if there are none.

        The waiting read asks for one entry of each stream, so it may exceed ``room`` by two.
        """
        turns = self._turns.next(min(room, MAX_ROOM))
        entries, more = self._read_each({s: turns[s] for s in self._streams if turns[s]})
        for stream in more:
            if (count := room - len(entries)) > 0:
                entries += self._read_each({stream: count})[0]
        if entries:
            return entries
        self._on_empty()
        command = (*self._command(1), "BLOCK", BLOCK_MS, "STREAMS", *self._streams)
        return parse_reply(self._link.one(*command, *(">" for _ in self._streams)))

    def _read_each(self, counts: Mapping[str, int]) -> tuple[list[Entry], list[str]]:
        """So many entries of each stream, and the streams that may hold more."""
        replies = self._link.call(
            *((*self._command(count), "STREAMS", stream, ">") for stream, count in counts.items())
        )
        entries: list[Entry] = []
        more = [stream for stream in self._streams if stream not in counts]
        for (stream, count), reply in zip(counts.items(), replies, strict=True):
            if isinstance(reply, Exception):
                raise reply
            found = parse_reply(reply)
            entries += found
            if len(found) == count:
                more.append(stream)
        return entries, sorted(more, key=self._streams.index)

    def _command(self, count: int) -> tuple[str | int, ...]:
        return ("XREADGROUP", "GROUP", GROUP, self._worker, "COUNT", count)

    def _hand_over(self, entries: Sequence[Entry]) -> None:
        try:
            self._take(entries)
        except Exception:
            self._seen = 0
            raise


def ensure_groups(link: Link, streams: Sequence[str]) -> None:
    """Create the streams and groups that are missing, from their first entry on."""
    commands = [("XGROUP", "CREATE", stream, GROUP, "0", "MKSTREAM") for stream in streams]
    for reply in link.call(*commands):
        if isinstance(reply, ResponseError) and "BUSYGROUP" not in str(reply):
            raise reply


def group_is_gone(error: Exception) -> bool:
    """True if the stream or its group was deleted (FLUSHALL, a failover that lost it)."""
    message = str(error)
    return "NOGROUP" in message or "UNBLOCKED" in message
