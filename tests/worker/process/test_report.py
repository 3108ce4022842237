"""Responses of the engine as events and results."""

from __future__ import annotations

import time
from typing import Any, cast

import pytest

from mlxq_schemas import (
    Event,
    Failed,
    Finished,
    Job,
    Retrying,
    Sampling,
    Started,
    Token,
    TokenLogprob,
    Usage,
)
from mlxq_schemas.errors import GenerationFailed, MediaFetchFailed
from mlxq_worker.engine.request import Response, Times
from mlxq_worker.process.flight import Flight, Flights, Stage, Stop
from mlxq_worker.process.report import LONGEST_DELAY, Reporter, Retries
from mlxq_worker.queue.claim import Claim
from mlxq_worker.queue.entry import Entry
from mlxq_worker.queue.outbox import Closing, Ending, PutOff
from mlxq_worker.queue.publish import Publisher


class Paper:
    """Stands for the publisher."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.endings: list[Ending] = []
        self.put_offs: list[PutOff] = []

    def add(self, claim: Claim, event: Event) -> None:
        self.events.append(event)

    def add_text(
        self, claim: Claim, text: str, ids: list[int], logprobs: list[TokenLogprob]
    ) -> None:
        self.add(claim, Token(job=claim.job_id, text=text, ids=ids, logprobs=logprobs or None))

    def end(
        self,
        claim: Claim,
        ending: Closing,
        text: str,
        ids: list[int],
        logprobs: list[TokenLogprob],
    ) -> None:
        if text or ids:
            self.add_text(claim, text, ids, logprobs)
        if isinstance(ending, PutOff):
            self.put_offs.append(ending)
        else:
            self.endings.append(ending)


class Desk:
    def __init__(self) -> None:
        self.paper = Paper()
        self.flights = Flights()
        retries = Retries(max_attempts=3, delay=8.0)
        self.reporter = Reporter(cast(Publisher, self.paper), self.flights, "w", retries)
        self.reporter.identity = "model@1"

    def flight(self, errors: int = 0, **fields: Any) -> Flight:
        entry = Entry("s", "1-0", "a")
        flight = self.flights.reserve(entry)
        assert flight is not None
        self.flights.claimed(flight, Claim(entry, "a", epoch=3, attempt=2, errors=errors))
        flight.job = Job(id="a", prompt="p", **fields)
        self.flights.advance(flight, Stage.RUNNING)
        return flight

    def say(self, token: int | None = None, text: str = "", **fields: Any) -> None:
        self.reporter.responses([Response(1, "a:3", token, text, **fields)])

    @property
    def tokens(self) -> list[tuple[str, list[int]]]:
        return [(e.text, e.ids) for e in self.paper.events if isinstance(e, Token)]


@pytest.fixture
def desk() -> Desk:
    return Desk()


USAGE = Usage(prompt_tokens=5, completion_tokens=4)


def test_tokens_carry_the_ids_since_the_last_one(desk: Desk) -> None:
    desk.flight(sampling=Sampling(max_tokens=9, seed=4))
    desk.say(1)
    desk.say(2, "é")
    desk.say(3, "x")
    desk.say(4, finish_reason="stop", usage=USAGE, times=Times(1.0, 2.0, 3.0))
    assert desk.tokens == [("é", [1, 2]), ("x", [3]), ("", [4])]
    [ending] = desk.paper.endings
    assert isinstance(ending.event, Finished)
    assert (ending.event.text, ending.event.reason, ending.event.usage) == ("éx", "stop", USAGE)
    result = ending.result
    assert (result.text, result.usage, result.t) == ("éx", USAGE, ending.event.t)
    assert (result.timing.prefill, result.timing.decode) == (2.0, 3.0)
    assert result.timing.queued >= 1.0
    assert result.provenance
    assert (result.provenance.model, result.provenance.attempt) == ("model@1", 2)
    assert result.provenance.sampler["seed"] == 4
    assert desk.reporter.counters.tokens == 4


def test_what_was_computed_counts_whatever_became_of_its_job(desk: Desk) -> None:
    usage = Usage(prompt_tokens=5, cached_tokens=3, completion_tokens=1)
    began = Times(1.0, 2.0)
    ends: list[dict[str, Any]] = [
        {"finish_reason": "stop"},
        {"finish_reason": "cancelled"},
        {"finish_reason": "error", "error": GenerationFailed("x")},
        {"finish_reason": "error", "error": MediaFetchFailed("may pass")},
    ]
    for end in ends:
        flight = desk.flight()
        desk.say(1, "a")
        desk.say(usage=usage, times=began, **end)
        desk.flights.advance(flight, Stage.GONE)
    desk.say(1, "lost")
    desk.say(finish_reason="cancelled", usage=usage, times=began)
    desk.flight()
    desk.say(finish_reason="length", usage=usage, times=Times(waiting=4.0))
    counters = desk.reporter.counters
    assert (counters.tokens, counters.prompt_tokens, counters.cached_tokens) == (5, 25, 15)


def test_an_end_of_which_the_engine_says_nothing_counts_what_is_known(desk: Desk) -> None:
    flight = desk.flight()
    flight.generated, flight.prompt_tokens, flight.images = 7, 5, 1
    desk.say(1, "a")
    desk.reporter.failed(flight, GenerationFailed("the step failed"))
    usage = Usage(prompt_tokens=5, completion_tokens=8, images=1)
    assert desk.paper.endings[0].result.usage == usage


def test_a_job_that_does_not_stream_gets_its_text_at_once(desk: Desk) -> None:
    desk.flight(stream=False)
    desk.say(1, "a")
    desk.say(2, "b")
    assert desk.tokens == []
    desk.say(3, "c", finish_reason="length", usage=USAGE)
    assert desk.tokens == [("abc", [1, 2, 3])]
    assert desk.paper.endings[0].result.text == "abc"


def test_text_of_earlier_attempts_belongs_to_the_result(desk: Desk) -> None:
    flight = desk.flight()
    flight.text = ["before "]
    desk.reporter.started(flight)
    desk.say(1, "after", finish_reason="stop", usage=USAGE)
    assert isinstance(desk.paper.events[0], Started)
    assert desk.tokens == [("after", [1])]
    assert desk.paper.endings[0].result.text == "before after"


def test_a_restart_is_told_before_the_start(desk: Desk) -> None:
    desk.reporter.started(desk.flight(), restart="another model")
    retrying, started = desk.paper.events
    assert isinstance(retrying, Retrying)
    assert (retrying.restart, retrying.message) == (True, "another model")
    assert isinstance(started, Started)
    assert started.model == "model@1"


def test_a_failure_has_a_code_and_no_secrets(desk: Desk) -> None:
    desk.flight()
    desk.say(1, "part")
    error = GenerationFailed("broke at https://me:pw@host/")
    desk.say(finish_reason="error", error=error, usage=USAGE)
    event, result = desk.paper.endings[0].event, desk.paper.endings[0].result
    assert isinstance(event, Failed)
    assert (event.code, event.message) == ("generation_failed", "broke at https://…@host/")
    assert (result.type, result.text, result.code) == ("failed", "part", "generation_failed")


def test_only_a_cancelled_job_ends_as_cancelled(desk: Desk) -> None:
    flight = desk.flight()
    desk.say(finish_reason="cancelled", usage=USAGE)
    assert desk.paper.endings == []
    flight.stop = Stop.CANCELLED
    desk.say(finish_reason="cancelled", usage=USAGE)
    assert desk.paper.endings[0].event.type == "cancelled"


def test_nothing_comes_after_the_end(desk: Desk) -> None:
    flight = desk.flight()
    desk.reporter.failed(flight, GenerationFailed("x"))
    desk.say(1, "late", finish_reason="stop", usage=USAGE)
    flight.stop = Stop.CANCELLED
    desk.reporter.stopped(flight)
    assert desk.tokens == []
    assert len(desk.paper.endings) == 1
    assert flight.stage is Stage.ENDING


def test_settled_jobs_are_counted_once(desk: Desk) -> None:
    desk.flight()
    desk.say(1, "a", finish_reason="stop", usage=USAGE)
    for _ in range(2):
        desk.reporter.settled("a:3", desk.paper.endings[0])
    assert (desk.reporter.counters.done, desk.reporter.counters.ended) == (1, 1)
    assert len(desk.flights) == 0


def test_an_unknown_request_is_ignored(desk: Desk) -> None:
    desk.say(1, "x", finish_reason="stop")
    assert desk.paper.events == []


def test_a_report_that_fails_ends_the_job(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.flight()

    def broken(*_: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(desk.reporter, "_finished", broken)
    desk.say(1, "a", finish_reason="stop", usage=USAGE)
    event = desk.paper.endings[0].event
    assert isinstance(event, Failed)
    assert event.code == "internal"


def test_an_error_that_may_pass_puts_the_job_off_with_its_text(desk: Desk) -> None:
    flight = desk.flight()
    desk.say(1, "part")
    desk.reporter.failed(flight, MediaFetchFailed("cut at https://me:pw@host/"))
    [put_off] = desk.paper.put_offs
    event = put_off.event
    assert (event.code, event.restart, put_off.errors) == ("media_fetch_failed", False, 1)
    assert "pw" not in event.message
    assert 4.0 <= event.delay <= 8.0
    assert put_off.due <= time.time() + 8.0
    assert desk.tokens == [("part", [1])]
    desk.reporter.settled("a:3", put_off)
    assert (desk.reporter.counters.put_off, desk.reporter.counters.ended) == (1, 0)
    assert len(desk.flights) == 0


@pytest.mark.parametrize(("errors", "asked", "dead"), [(1, None, 0), (2, None, 1), (2, 9, 0)])
def test_the_last_of_its_attempts_is_its_end(
    desk: Desk, errors: int, asked: int | None, dead: int
) -> None:
    flight = desk.flight(errors, max_attempts=asked)
    desk.reporter.failed(flight, MediaFetchFailed("cut"))
    assert (len(desk.paper.endings), len(desk.paper.put_offs)) == (dead, 1 - dead)


def test_a_retry_does_not_outlast_the_deadline(desk: Desk) -> None:
    deadline = time.time() + 0.5
    desk.reporter.failed(desk.flight(deadline=deadline), MediaFetchFailed("cut"))
    assert desk.paper.put_offs[0].due == deadline


def test_a_cancelled_job_is_not_tried_again(desk: Desk) -> None:
    flight = desk.flight()
    flight.stop = Stop.CANCELLED
    desk.reporter.failed(flight, MediaFetchFailed("cut"))
    assert desk.paper.endings[0].event.type == "cancelled"


def test_pauses_double_up_to_a_limit() -> None:
    retries = Retries(delay=2.0)
    assert all(1.0 <= retries.pause(1) <= 2.0 for _ in range(50))
    assert all(8.0 <= retries.pause(4) <= 16.0 for _ in range(50))
    assert all(LONGEST_DELAY / 2 <= retries.pause(n) <= LONGEST_DELAY for n in (20, 10_000))


@pytest.mark.parametrize(
    ("stop", "kind", "code"),
    [(Stop.EXPIRED, "expired", None), (Stop.TIMEOUT, "failed", "timeout")],
)
def test_limits_of_a_job_end_it_with_the_text_so_far(
    desk: Desk, stop: Stop, kind: str, code: str | None
) -> None:
    flight = desk.flight(timeout=5.0)
    desk.say(1, "part")
    flight.stop = stop
    desk.say(finish_reason="cancelled", usage=USAGE)
    result = desk.paper.endings[0].result
    assert (result.type, result.code, result.text, result.usage) == (kind, code, "part", USAGE)
