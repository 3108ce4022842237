"""Running a job alone that was in flight when two workers died: if it is the cause, it is known.

Such a job is claimed, but does not begin while anything else is in flight, and meanwhile nothing
more is taken. Until it begins, the death of its worker does not count against it: other jobs may
be to blame. A third death is its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from mlxq_schemas import Keys
from mlxq_worker.process.flight import Flight, Flights, Stage
from mlxq_worker.queue.link import Link, run_script

PAUSE: Final = 0.05
"""Seconds between looks whether the suspect is alone, unless woken."""
IDLE: Final = 1.0


class Quarantine:
    """Holds at most one suspect, and its duty's step.

    ``prepare`` gets the suspect when it is alone; ``on_lost`` its request id if its lease is lost
    before; ``on_open`` is called when others may be taken again. Who claims jobs holds ``gate``
    and asks ``shut``, so that none slips in beside a suspect that begins. ``wake`` wakes the duty.
    """

    def __init__(
        self,
        link: Link,
        keys: Keys,
        flights: Flights,
        *,
        prepare: Callable[[Flight], None],
        on_lost: Callable[[str, str], None],
        on_open: Callable[[], None],
    ) -> None:
        self._link = link
        self._keys = keys
        self._flights = flights
        self._prepare = prepare
        self._on_lost = on_lost
        self._on_open = on_open
        self._suspect: Flight | None = None
        self._begun = False
        self.gate = threading.Lock()
        self.shut = False
        self.wake: Callable[[], None] = lambda: None

    @property
    def occupied(self) -> bool:
        """True while there is a suspect: no more jobs may be taken."""
        return self._suspect is not None

    def admit(self, flight: Flight) -> bool:
        """Take a suspect in; False if there is one already. Call it with ``gate`` held."""
        if self._suspect is not None:
            return False
        self._suspect, self._begun = flight, False
        self.wake()
        return True

    def step(self) -> float:
        """Let the suspect begin once it is alone; the seconds until the next look."""
        flight = self._suspect
        if flight is None:
            return IDLE
        if flight.stage is Stage.GONE:
            self._suspect, self.shut = None, False
            self._on_open()
            return IDLE
        if not self._begun and self._alone(flight):
            self._begin(flight)
        return PAUSE

    def _alone(self, flight: Flight) -> bool:
        with self.gate:
            # What was cancelled ends without being touched.
            self.shut = flight.stop is not None or len(self._flights) == 1
            return self.shut

    def _begin(self, flight: Flight) -> None:
        claim = flight.owned
        command = run_script("begin", [self._keys.job(claim.job_id)], [claim.epoch])
        if self._link.one(*command) == 1:
            self._begun = True
            self._prepare(flight)
        else:
            self._on_lost(claim.request_id, "another worker has it")
