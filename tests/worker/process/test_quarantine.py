"""A suspect runs when it is alone, and counts its worker's death only from then on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from lua_worker import LuaWorker
from mlxq_producer.embedded import EmbeddedServer
from mlxq_schemas import Job
from mlxq_worker.process import quarantine as module
from mlxq_worker.process.flight import Flight, Flights, Stage, Stop
from mlxq_worker.process.quarantine import Quarantine
from mlxq_worker.queue.claim import Claim, Claimer, Retention
from mlxq_worker.queue.connection import connect
from mlxq_worker.queue.entry import Entry
from mlxq_worker.queue.link import Link


class Ward:
    def __init__(self, link: Link, other: LuaWorker) -> None:
        self.link = link
        self.other = other
        self.flights = Flights()
        self.prepared: list[Flight] = []
        self.lost: list[str] = []
        self.opened = 0
        self.quarantine = Quarantine(
            link,
            other.keys,
            self.flights,
            prepare=self.prepared.append,
            on_lost=lambda request_id, _: self.lost.append(request_id),
            on_open=self.open,
        )

    def open(self) -> None:
        self.opened += 1

    def flight(self, name: str) -> Flight:
        """A job that two workers died with, claimed by a third."""
        self.other.submit(Job(id=name, prompt="p"))
        [(entry, _)] = self.other.read()
        for worker in ("dead1", "dead2"):
            LuaWorker(self.other.client, self.other.queue, worker).claim(name, entry, "over")
        flight = self.flights.reserve(Entry(self.other.keys.jobs(), entry.decode(), name, "over"))
        assert flight is not None
        [claim] = Claimer(self.other.keys, "w", Retention(60, 600)).claim(self.link, [flight.entry])
        assert isinstance(claim, Claim)
        assert (claim.alone, claim.deaths) == (True, 2)
        self.flights.claimed(flight, claim)
        return flight

    def deaths(self, name: str) -> str:
        """As the next worker counts them, were this one to die now."""
        entry = self.other.state(name)["entry"].encode()
        return LuaWorker(self.other.client, self.other.queue, "next").claim(name, entry, "over")[3]


@pytest.fixture
def ward(redis_client: redis.Redis, server: EmbeddedServer, queue: str) -> Iterator[Ward]:
    client = connect(server.url, "test", queue)
    link = Link(client)
    yield Ward(link, LuaWorker(redis_client, queue, "other"))
    link.close()
    client.close()


def test_a_suspect_begins_when_all_others_have_ended(ward: Ward) -> None:
    suspect = ward.flight("suspect")
    busy = ward.flights.reserve(Entry("s", "1-0", "busy"))
    assert busy is not None
    assert ward.quarantine.admit(suspect)
    assert not ward.quarantine.admit(suspect)
    assert ward.quarantine.step() == module.PAUSE
    assert (ward.prepared, ward.quarantine.occupied, ward.quarantine.shut) == ([], True, False)
    ward.flights.advance(busy, Stage.GONE)
    ward.quarantine.step()
    ward.quarantine.step()
    assert (ward.prepared, ward.quarantine.shut) == ([suspect], True)
    ward.flights.advance(suspect, Stage.GONE)
    assert ward.quarantine.step() == module.IDLE
    assert (ward.opened, ward.quarantine.occupied, ward.quarantine.shut) == (1, False, False)


def test_a_death_while_it_waits_is_not_its_own(ward: Ward) -> None:
    ward.flight("suspect")
    assert ward.deaths("suspect") == 2


def test_a_death_after_it_began_is_its_own(ward: Ward) -> None:
    suspect = ward.flight("suspect")
    ward.quarantine.admit(suspect)
    ward.quarantine.step()
    assert ward.prepared == [suspect]
    assert ward.deaths("suspect") == 3


def test_a_suspect_whose_lease_is_lost_does_not_begin(ward: Ward) -> None:
    suspect = ward.flight("suspect")
    ward.deaths("suspect")  # somebody took it over
    ward.quarantine.admit(suspect)
    ward.quarantine.step()
    assert (ward.prepared, ward.lost) == ([], [suspect.owned.request_id])


def test_a_cancelled_suspect_need_not_be_alone(ward: Ward) -> None:
    suspect = ward.flight("suspect")
    ward.flights.reserve(Entry("s", "1-0", "busy"))
    ward.quarantine.admit(suspect)
    suspect.stop = Stop.CANCELLED
    ward.quarantine.step()
    assert ward.prepared == [suspect]
