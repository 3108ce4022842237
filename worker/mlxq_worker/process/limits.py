"""Watching the jobs that have a deadline or a timeout of their own, or were cancelled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mlxq_worker.process.flight import Flight, Flights, Stage

PERIOD: Final = 0.1
"""Seconds between looks: how late a job may end."""


class Limits:
    """The step of the limits duty.

    ``abort`` ends a request in the engine; ``end`` ends a flight that is still prepared: that may
    hang.
    """

    def __init__(
        self, flights: Flights, abort: Callable[[str], None], end: Callable[[Flight], None]
    ) -> None:
        self._flights = flights
        self._abort = abort
        self._end = end

    def step(self) -> float:
        """Ask for the end of every job that is past a limit; the seconds until the next look."""
        now = self._flights.clock.now()
        for flight in self._flights.unfinished():
            if flight.stop is None and (stop := flight.limit(now)) is not None:
                flight.stop = stop
                self._abort(flight.owned.request_id)
            if flight.stop is not None and flight.opened and flight.stage is Stage.PREPARING:
                self._end(flight)
        return PERIOD
