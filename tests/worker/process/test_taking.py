"""From entries to flights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from mlxq_schemas import Keys
from mlxq_schemas.errors import QueueError
from mlxq_worker.process.flight import Flight, Flights
from mlxq_worker.process.quarantine import Quarantine
from mlxq_worker.process.taking import Taker
from mlxq_worker.queue.claim import Claim, Claimer, Refused
from mlxq_worker.queue.entry import Entry
from mlxq_worker.queue.link import Link

LINK = cast(Link, None)


class Office:
    """Stands for the claimer; entries named "gone", "oom" and "suspect..." get these answers."""

    def __init__(self) -> None:
        self.flights = Flights()
        self.prepared: list[Flight] = []
        self.rereads = 0
        self.limit = 100
        self.error: Exception | None = None
        self.given_back: list[str] = []
        self.quarantine = Quarantine(
            LINK,
            Keys(),
            self.flights,
            prepare=self.prepared.append,
            on_lost=lambda *_: None,
            on_open=lambda: None,
        )
        self.taker = Taker(
            self.flights,
            cast(Claimer, self),
            4,
            limit=lambda: self.limit,
            quarantine=self.quarantine,
            give_back=lambda _, claims: self.given_back.extend(c.job_id for c in claims),
            prepare=self.prepared.append,
            reread=self.reread,
        )

    def reread(self) -> None:
        self.rereads += 1

    def claim(self, link: Link, entries: Sequence[Entry]) -> list[Claim | Refused | None]:
        if self.error is not None:
            raise self.error
        return [self.answer(entry) for entry in entries]

    def answer(self, entry: Entry) -> Claim | Refused | None:
        match entry.job_id:
            case "gone":
                return None
            case "oom":
                return Refused(RuntimeError("OOM"))
            case name:
                name = name or ""
                return Claim(entry, name, epoch=1, alone=name.startswith("suspect"))

    def take(self, *names: str) -> None:
        self.taker.take(LINK, [Entry("s", f"{name}-0", name) for name in names])

    @property
    def ids(self) -> list[str]:
        return [flight.owned.job_id for flight in self.prepared]


def test_claimed_jobs_are_prepared_once() -> None:
    office = Office()
    office.take("a", "gone", "b")
    office.take("a", "c")
    assert office.ids == ["a", "b", "c"]
    assert (len(office.flights), office.rereads) == (3, 0)


def test_room_is_what_is_left_and_what_else_allows() -> None:
    office = Office()
    office.take("a")
    assert office.taker.room() == 3
    office.limit = 0
    assert office.taker.room() == 0


def test_jobs_of_silent_workers_have_places_when_new_ones_took_all() -> None:
    office = Office()
    office.take("a", "b", "c", "d")
    assert office.taker.room() == 0
    assert office.taker.room_for_lost() == 2
    office.take("lost1", "lost2")
    assert office.taker.room_for_lost() == 0
    assert office.taker.room() < 0
    office.limit = 0
    assert office.taker.room_for_lost() == 0


def test_refused_claims_are_forgotten_and_read_again() -> None:
    office = Office()
    with pytest.raises(QueueError):
        office.take("a", "oom")
    assert office.ids == ["a"]
    assert (len(office.flights), office.rereads) == (1, 1)


def test_a_broken_connection_forgets_all() -> None:
    office = Office()
    office.error = ConnectionError("cut")
    with pytest.raises(ConnectionError):
        office.take("a", "b")
    assert (len(office.flights), office.rereads) == (0, 1)


def test_one_suspect_waits_and_no_more_is_taken() -> None:
    office = Office()
    office.take("a", "suspect1", "suspect2", "b")
    assert office.ids == ["a", "b"]
    assert office.given_back == ["suspect2"]
    assert office.taker.room() == 0
    assert sorted(job_id for job_id, _ in office.flights.lives()) == ["a", "b", "suspect1"]


def test_what_was_read_before_a_suspect_began_is_not_claimed() -> None:
    office = Office()
    office.quarantine.shut = True
    office.take("a")
    assert (office.ids, len(office.flights), office.rereads) == ([], 0, 1)
