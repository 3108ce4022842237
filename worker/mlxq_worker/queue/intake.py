"""Reading jobs: only as many as the engine can take; the rest stays for other workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from redis.exceptions import ResponseError

from mlxq_schemas import GROUP, Keys
from mlxq_worker.queue.entry import Entry, parse_reply
from mlxq_worker.queue.link import Link

BLOCK_MS: Final = 1000
"""How long one read waits for a job; well below the socket timeout."""
FULL_PAUSE: Final = 0.25
"""Seconds until capacity is looked at again, unless woken."""
GROUP_PAUSE: Final = 0.1
"""Seconds after a lost group: somebody may be deleting the streams in a loop."""
PAGE: Final = 100


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
            if not group_is_gone(error):
                raise
            self._seen = 0
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
            self._take_pending(stream, taken_over=self._first)
        self._first = False
        self._seen = generation

    def _take_pending(self, stream: str, *, taken_over: bool) -> None:
        after = "0"
        while True:
            reply = self._link.one(*self._command(PAGE), "STREAMS", stream, after)
            entries = parse_reply(reply, taken_over=taken_over)
            if not entries:
                return
            after = entries[-1].id
            self._take(entries)

    def _read(self, room: int) -> list[Entry]:
        """Up to ``room`` entries, the most urgent first; waits if there are none.

        The waiting read asks for one entry of each stream, so it may exceed ``room`` by two.
        """
        entries: list[Entry] = []
        for stream in self._streams:
            count = room - len(entries)
            if count > 0:
                reply = self._link.one(*self._command(count), "STREAMS", stream, ">")
                entries += parse_reply(reply)
        if entries:
            return entries
        self._on_empty()
        command = (*self._command(1), "BLOCK", BLOCK_MS, "STREAMS", *self._streams)
        return parse_reply(self._link.one(*command, *(">" for _ in self._streams)))

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
