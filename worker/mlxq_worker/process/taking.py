"""From entries read to jobs in preparation, and how many there may be."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mlxq_schemas.errors import QueueError
from mlxq_worker.process.flight import Flight, Flights, Stage
from mlxq_worker.queue.claim import Claim, Claimer, Refused
from mlxq_worker.queue.entry import Entry
from mlxq_worker.queue.link import Link


class Taker:
    """What intake and reclaim do with entries; each calls it from its own thread.

    ``limit``: how many jobs may be taken now, by what else is going on (shutdown, a full
    buffer, ``max_jobs``). ``prepare`` gets claimed flights. ``reread`` is called when entries
    are ours that we could not claim.
    """

    def __init__(
        self,
        flights: Flights,
        claimer: Claimer,
        capacity: int,
        *,
        limit: Callable[[], int],
        prepare: Callable[[Flight], None],
        reread: Callable[[], None],
    ) -> None:
        self._flights = flights
        self._claimer = claimer
        self._capacity = capacity
        self._limit = limit
        self._prepare = prepare
        self._reread = reread

    def room(self) -> int:
        """How many jobs may be taken now; 0 or less: none."""
        return min(self._capacity - self._flights.busy(), self._limit())

    def take(self, link: Link, entries: Sequence[Entry]) -> None:
        """Claim entries and send them on. Raises if the server did not carry out all claims."""
        reserved = (self._flights.reserve(entry) for entry in entries)
        fresh = [flight for flight in reserved if flight is not None]
        try:
            outcomes = self._claimer.claim(link, [flight.entry for flight in fresh])
        except BaseException:
            self._release(fresh)
            raise
        refused: list[Flight] = []
        errors: list[Exception] = []
        for flight, outcome in zip(fresh, outcomes, strict=True):
            match outcome:
                case Claim():
                    self._flights.claimed(flight, outcome)
                    self._prepare(flight)
                case Refused(error):
                    refused.append(flight)
                    errors.append(error)
                case None:
                    self._flights.advance(flight, Stage.GONE)
        if errors:
            self._release(refused)
            raise QueueError(f"the server refused {len(errors)} claims: {errors[0]}")

    def _release(self, flights: Sequence[Flight]) -> None:
        """Forget entries that are still ours on the server: intake reads them again."""
        for flight in flights:
            self._flights.advance(flight, Stage.GONE)
        self._reread()
