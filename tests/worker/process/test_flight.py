"""The registry of jobs in flight."""

from __future__ import annotations

import threading

from mlxq_worker.process.flight import Flight, Flights, Stage, Stop
from mlxq_worker.queue.claim import Claim
from mlxq_worker.queue.entry import Entry

ENTRY = Entry("s", "1-0", "a")


def claimed(flights: Flights, entry: Entry = ENTRY) -> Flight:
    flight = flights.reserve(entry)
    assert flight is not None
    flights.claimed(flight, Claim(entry, entry.job_id or "", epoch=1))
    return flight


def test_an_entry_is_taken_once() -> None:
    flights = Flights()
    flight = claimed(flights)
    assert flights.reserve(Entry("s", "1-0", "a", how="over")) is None
    assert flights.by_request("a:1") is flight
    assert flights.by_entry(ENTRY) is flight
    flights.advance(flight, Stage.GONE)
    assert (flights.by_request("a:1"), flights.by_entry(ENTRY), len(flights)) == (None, None, 0)
    assert flights.reserve(ENTRY) is not None


def test_stages_only_go_forward() -> None:
    flights = Flights()
    flight = claimed(flights)
    assert flights.advance(flight, Stage.RUNNING)
    assert not flights.advance(flight, Stage.RUNNING)
    assert flights.advance(flight, Stage.GONE)
    assert not flights.advance(flight, Stage.ENDING)


def test_one_of_many_threads_ends_a_flight() -> None:
    flights = Flights()
    flight = claimed(flights)
    won: list[bool] = []
    threads = [
        threading.Thread(target=lambda: won.append(flights.advance(flight, Stage.ENDING)))
        for _ in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won.count(True) == 1


def test_counting() -> None:
    rooms: list[int] = []
    flights = Flights(lambda: rooms.append(1))
    first, second = claimed(flights), claimed(flights, Entry("s", "2-0", "b"))
    flights.reserve(Entry("s", "3-0", "c"))
    assert (flights.busy(), len(flights), len(flights.lives())) == (3, 3, 2)
    flights.advance(first, Stage.RUNNING)
    assert flights.unfinished(Stage.RUNNING) == [second]
    flights.advance(first, Stage.ENDING)
    assert flights.unfinished() == [second]
    assert (flights.busy(), len(flights), len(rooms)) == (2, 3, 1)
    assert len(flights.entries()) == 3  # also what is ending keeps its lease


def test_a_cancel_before_the_claim_is_not_forgotten() -> None:
    flights = Flights()
    flight = flights.reserve(ENTRY)
    assert flight is not None
    assert flights.cancel("a", "7") == []
    flights.claimed(flight, Claim(ENTRY, "a", epoch=1, life="7"))
    assert flight.stop is Stop.CANCELLED


def test_a_cancel_is_for_one_life_of_an_id() -> None:
    flights = Flights()
    early, late = flights.reserve(ENTRY), flights.reserve(Entry("s", "2-0", "a"))
    assert early is not None
    assert late is not None
    flights.claimed(early, Claim(ENTRY, "a", epoch=1, life="7"))
    assert flights.cancel("a", "6") == flights.cancel("b", "7") == []
    assert flights.cancel("a", "7") == [early]
    flights.claimed(late, Claim(late.entry, "a", epoch=2, life="8"))
    assert (early.stop, late.stop) == (Stop.CANCELLED, None)
