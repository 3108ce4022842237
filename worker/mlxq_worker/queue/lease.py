"""Renewing leases, in a thread and on a connection that a busy engine cannot starve.

Each time leaves a beat too, also where nothing is in flight: by the beats all workers know since
when the server could be reached, and so whose lease has run out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from mlxq_schemas import GROUP, Keys
from mlxq_worker.queue.connection import text
from mlxq_worker.queue.entry import Entry
from mlxq_worker.queue.intake import group_is_gone
from mlxq_worker.queue.link import Link, run_script


class LeaseKeeper:
    """The step of the lease duty: four renewals a lease.

    ``lease`` is in seconds. ``held``: the entries in flight. ``on_lost`` gets each one that is no
    longer ours.
    """

    def __init__(
        self,
        link: Link,
        keys: Keys,
        worker: str,
        *,
        lease: float,
        held: Callable[[], Sequence[Entry]],
        on_lost: Callable[[Entry], None],
    ) -> None:
        self._link = link
        self._worker = worker
        self._beat = run_script("beat", [keys.beats], [lease])
        self._period = lease / 4
        self._held = held
        self._on_lost = on_lost

    def step(self) -> float:
        """Renew all; the seconds until the next time."""
        by_stream: dict[str, dict[str, Entry]] = defaultdict(dict)
        for entry in self._held():
            by_stream[entry.stream][entry.id] = entry
        commands = [
            run_script("renew", [stream], [GROUP, self._worker, *entries])
            for stream, entries in by_stream.items()
        ]
        *replies, beat = self._link.call(*commands, self._beat)
        for entries, reply in zip(by_stream.values(), replies, strict=True):
            if isinstance(reply, Exception) and not group_is_gone(reply):
                raise reply
            lost = entries if isinstance(reply, Exception) else map(text, reply)
            for entry_id in lost:
                self._on_lost(entries[entry_id])
        if isinstance(beat, Exception):
            raise beat
        return self._period
