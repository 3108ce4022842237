"""Deadlines and timeouts of jobs in flight."""

from __future__ import annotations

import time

from mlxq_schemas import Job
from mlxq_worker.process.flight import Flight, Flights, Stage, Stop
from mlxq_worker.process.limits import PERIOD, Limits
from mlxq_worker.queue.claim import Claim
from mlxq_worker.queue.entry import Entry


def flight(flights: Flights, name: str, **limits: float) -> Flight:
    """A running job that began a minute ago."""
    entry = Entry("s", f"{name}-0", name)
    made = flights.reserve(entry)
    assert made is not None
    flights.claimed(made, Claim(entry, name, epoch=1))
    made.job = Job.model_validate({"id": name, "prompt": "p", **limits})
    made.started, made.began = True, time.monotonic() - 60
    flights.advance(made, Stage.RUNNING)
    return made


def test_jobs_past_a_limit_are_stopped_once() -> None:
    flights, aborted = Flights(), list[str]()
    now = time.time()
    made = [
        flight(flights, "none"),
        flight(flights, "late", deadline=now - 1, timeout=1),
        flight(flights, "long", deadline=now + 3600, timeout=59),
        flight(flights, "fine", deadline=now + 3600, timeout=3600),
    ]
    limits = Limits(flights, aborted.append, lambda _: None)
    assert limits.step() == PERIOD
    assert [f.stop for f in made] == [None, Stop.EXPIRED, Stop.TIMEOUT, None]
    limits.step()
    assert aborted == ["late:1", "long:1"]


def test_time_before_the_start_is_no_run_time() -> None:
    flights, aborted = Flights(), list[str]()
    waiting = flight(flights, "a", timeout=1)
    waiting.started = False
    Limits(flights, aborted.append, lambda _: None).step()
    assert aborted == []


def test_what_has_ended_is_left_alone() -> None:
    flights, aborted = Flights(), list[str]()
    flights.advance(flight(flights, "a", timeout=1), Stage.ENDING)
    Limits(flights, aborted.append, lambda _: None).step()
    assert aborted == []
