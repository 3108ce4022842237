"""From entries read to jobs in preparation, and how many there may be."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mlxq_schemas.errors import QueueError
from mlxq_worker.process.flight import Flight, Flights, Stage
from mlxq_worker.process.quarantine import Quarantine
from mlxq_worker.queue.claim import Claim, Claimer, Refused
from mlxq_worker.queue.entry import Entry
from mlxq_worker.queue.link import Link


class Taker:
    """What intake and reclaim do with entries; each calls it from its own thread.

    ``limit``: how many jobs may be taken now, by what else is going on (shutdown, a full
    buffer, ``max_jobs``). ``prepare`` gets claimed flights, ``quarantine`` those that must run
    alone, ``give_back`` those of them for which there is no place. ``reread`` is called when
    entries are ours that we could not claim.
    """

    def __init__(
        self,
        flights: Flights,
        claimer: Claimer,
        capacity: int,
        *,
        limit: Callable[[], int],
        quarantine: Quarantine,
        give_back: Callable[[Link, Sequence[Claim]], object],
        prepare: Callable[[Flight], None],
        reread: Callable[[], None],
    ) -> None:
        self._flights = flights
        self._claimer = claimer
        self._capacity = capacity
        self._limit = limit
        self._quarantine = quarantine
        self._give_back = give_back
        self._prepare = prepare
        self._reread = reread

    def room(self) -> int:
        """How many jobs may be taken now; 0 or less: none."""
        return self._room(self._capacity)

    def room_for_lost(self) -> int:
        """How many jobs of silent workers may be taken now. These waited longer than any in the
        queue, so there are places for them when new jobs have taken all others; new ones then wait.
        """
        return self._room(self._capacity + max(1, self._capacity // 2))

    def _room(self, most: int) -> int:
        if self._quarantine.occupied:
            return 0
        return min(most - self._flights.busy(), self._limit())

    def take(self, link: Link, entries: Sequence[Entry]) -> None:
        """Claim entries and send them on. Raises if the server did not carry out all claims."""
        with self._quarantine.gate:
            if self._quarantine.shut:  # read before it was shut
                self._reread()
                return
            outcomes = self._claim(link, entries)
            suspects = [
                f for f, outcome in outcomes if isinstance(outcome, Claim) and outcome.alone
            ]
            crowd = [f for f in suspects if not self._quarantine.admit(f)]
        for flight, outcome in outcomes:
            if isinstance(outcome, Claim) and not outcome.alone:
                self._prepare(flight)
        if crowd:
            self._give_back(link, [f.owned for f in crowd if self._flights.advance(f, Stage.GONE)])
        refused = [(f, outcome.error) for f, outcome in outcomes if isinstance(outcome, Refused)]
        if refused:
            self._release([flight for flight, _ in refused])
            raise QueueError(f"the server refused {len(refused)} claims: {refused[0][1]}")

    def _claim(
        self, link: Link, entries: Sequence[Entry]
    ) -> list[tuple[Flight, Claim | Refused | None]]:
        reserved = (self._flights.reserve(entry) for entry in entries)
        fresh = [flight for flight in reserved if flight is not None]
        try:
            outcomes = self._claimer.claim(link, [flight.entry for flight in fresh])
        except BaseException:
            self._release(fresh)
            raise
        for flight, outcome in zip(fresh, outcomes, strict=True):
            if isinstance(outcome, Claim):
                self._flights.claimed(flight, outcome)
            elif outcome is None:
                self._flights.advance(flight, Stage.GONE)
        return list(zip(fresh, outcomes, strict=True))

    def _release(self, flights: Sequence[Flight]) -> None:
        """Forget entries that are still ours on the server: intake reads them again."""
        for flight in flights:
            self._flights.advance(flight, Stage.GONE)
        self._reread()
