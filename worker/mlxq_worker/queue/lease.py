"""Renewing leases, in a thread and on a connection that a busy engine cannot starve.

Each time leaves a beat too, also where nothing is in flight: by the beats all workers know since
when the server could be reached, and so whose lease has run out. Who stood still says so with it,
and takes back the deaths that others counted meanwhile.
"""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import Callable, Sequence

from mlxq_schemas import GROUP, Keys
from mlxq_worker.queue.claim import Claim
from mlxq_worker.queue.connection import text
from mlxq_worker.queue.entry import Entry
from mlxq_worker.queue.intake import group_is_gone
from mlxq_worker.queue.link import Link, run_script
from mlxq_worker.queue.standstill import Standstill

log = logging.getLogger(__name__)


class LeaseKeeper:
    """The step of the lease duty: four renewals a lease.

    ``lease`` is in seconds. ``held``: the entries in flight. ``on_lost`` gets each one that is no
    longer ours. ``standstill`` tells whether this process stood still.
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
        standstill: Standstill,
    ) -> None:
        self._link = link
        self._worker = worker
        self._keys = keys
        self._lease = lease
        self._held = held
        self._on_lost = on_lost
        self._standstill = standstill
        self._outlived: deque[Claim] = deque()

    def outlived(self, claim: Claim) -> None:
        """The lease of a claim ran out, but its owner lives. Any thread may call this."""
        self._outlived.append(claim)

    def step(self) -> float:
        """Renew all; the seconds until the next time."""
        by_stream: dict[str, dict[str, Entry]] = defaultdict(dict)
        for entry in self._held():
            by_stream[entry.stream][entry.id] = entry
        renewals = [
            run_script("renew", [stream], [GROUP, self._worker, *entries])
            for stream, entries in by_stream.items()
        ]
        slept = self._standstill.look()
        beat = run_script("beat", [self._keys.beats], [self._lease, int(slept > 0)])
        *replies, beaten = self._link.call(*renewals, beat)
        for entries, reply in zip(by_stream.values(), replies, strict=True):
            if isinstance(reply, Exception) and not group_is_gone(reply):
                raise reply
            lost = entries if isinstance(reply, Exception) else map(text, reply)
            for entry_id in lost:
                self._on_lost(entries[entry_id])
        if isinstance(beaten, Exception):
            raise beaten
        if slept:
            log.warning("stood still: leases are renewed", extra={"seconds": round(slept, 3)})
            self._standstill.told(slept)
        self._take_back_deaths()
        return self._lease / 4

    def _take_back_deaths(self) -> None:
        while self._outlived:
            claim = self._outlived[0]
            job = self._keys.job(claim.job_id)
            self._link.one(*run_script("alive", [job], [claim.epoch]))
            self._outlived.popleft()
