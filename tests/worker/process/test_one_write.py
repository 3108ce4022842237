"""What a row gave in its last step and its end reach the server together, or not at all.

The publisher here writes at the first chance, each time it is woken: whatever can be parted is.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from lua_worker import LuaWorker
from mlxq_producer.embedded import EmbeddedServer
from mlxq_schemas import Job, Token, TokenLogprob, Usage
from mlxq_schemas.errors import GenerationFailed, MediaFetchFailed
from mlxq_worker.engine.request import Response
from mlxq_worker.process.flight import Flights, Stage, Stop
from mlxq_worker.process.report import Reporter, Retries
from mlxq_worker.queue.claim import Claim, Claimer
from mlxq_worker.queue.connection import connect
from mlxq_worker.queue.entry import Entry
from mlxq_worker.queue.link import Link
from mlxq_worker.queue.outbox import Retention
from mlxq_worker.queue.publish import Publisher


class Eager:
    """A reporter whose every word is written at once; ``seen``: what the stream held after each
    write, as ``(type, text, ids)``.
    """

    def __init__(self, link: Link, other: LuaWorker, *, stream: bool = True) -> None:
        self.other = other
        self.seen: list[list[tuple[str, str, list[int]]]] = []
        self.flights = Flights()
        self.publisher = Publisher(
            link,
            other.keys,
            other.name,
            keep=Retention(60, 600),
            on_settled=lambda *_: None,
            on_lost=lambda _, why: pytest.fail(why),
        )
        self.publisher.wake = self._write
        self.reporter = Reporter(self.publisher, self.flights, "w", Retries())
        self.job = Job(id="a", prompt="p", stream=stream, logprobs=1)
        other.submit(self.job)
        [(entry, _)] = other.read()
        where = Entry(other.keys.jobs(), entry.decode(), "a")
        [claim] = Claimer(other.keys, other.name, Retention(60, 600)).claim(link, [where])
        assert isinstance(claim, Claim)
        flight = self.flights.reserve(where)
        assert flight is not None
        self.flight = flight
        self.flights.claimed(flight, claim)
        flight.job = self.job
        self.flights.advance(flight, Stage.RUNNING)

    def _write(self) -> None:
        self.publisher.step()
        tokens = [
            (event.type, event.text, event.ids)
            if isinstance(event, Token)
            else (event.type, "", [])
            for event in self.other.events("a")
        ]
        self.seen.append(tokens[1:])  # without ``queued``

    def say(self, token: int | None = None, text: str = "", **fields: object) -> Response:
        known = None if token is None else TokenLogprob(id=token, logprob=-0.5)
        response = Response(1, self.flight.owned.request_id, token, text, known)
        for name, value in fields.items():
            setattr(response, name, value)
        return response


@pytest.fixture
def link(server: EmbeddedServer) -> Iterator[Link]:
    client = connect(server.url, "test")
    link = Link(client)
    yield link
    link.close()
    client.close()


@pytest.fixture
def other(redis_client: redis.Redis, queue: str) -> LuaWorker:
    return LuaWorker(redis_client, queue, "other")


USAGE = Usage(prompt_tokens=5, completion_tokens=3)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("last", ["", "c"])
@pytest.mark.parametrize("reason", ["stop", "length"])
def test_the_last_text_and_the_end(
    link: Link, other: LuaWorker, stream: bool, last: str, reason: str
) -> None:
    eager = Eager(link, other, stream=stream)
    eager.reporter.responses([eager.say(1, "a")])
    eager.reporter.responses([eager.say(2, "b")])
    before = len(eager.seen)
    eager.reporter.responses([eager.say(3, last, finish_reason=reason, usage=USAGE)])
    [end] = eager.seen[before:]
    assert end[-1][0] == "finished"
    if stream:
        tokens = [("token", "a", [1]), ("token", "b", [2]), ("token", last, [3])]
    else:
        tokens = [("token", f"ab{last}", [1, 2, 3])]
    assert end[:-1] == tokens
    assert other.result("a").text == f"ab{last}"
    events = [event for event in other.events("a") if isinstance(event, Token)]
    told = [one.id for event in events for one in event.logprobs or ()]
    assert told == [1, 2, 3]


def test_a_token_and_an_end_that_come_apart_in_one_step(link: Link, other: LuaWorker) -> None:
    eager = Eager(link, other)
    wrong = eager.say(finish_reason="error", error=GenerationFailed("broken"), usage=USAGE)
    eager.reporter.responses([eager.say(1, "a"), wrong])
    assert eager.seen == [[("token", "a", [1]), ("failed", "", [])]]
    assert other.result("a").text == "a"


def test_several_tokens_of_one_step_are_one_event(link: Link, other: LuaWorker) -> None:
    eager = Eager(link, other)
    eager.reporter.responses([eager.say(1, "a"), eager.say(2), eager.say(3, "c")])
    assert eager.seen == [[("token", "ac", [1, 2, 3])]]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("stop", [Stop.CANCELLED, Stop.EXPIRED, Stop.TIMEOUT])
def test_ids_without_text_are_told_at_the_end(
    link: Link, other: LuaWorker, stream: bool, stop: Stop
) -> None:
    """A part of a character, or what may become a stop string."""
    eager = Eager(link, other, stream=stream)
    eager.reporter.responses([eager.say(1, "a")])
    eager.reporter.responses([eager.say(2)])
    before = len(eager.seen)
    eager.flight.stop = stop
    eager.reporter.responses([eager.say(finish_reason="cancelled", usage=USAGE)])
    [end] = eager.seen[before:]
    assert [i for _, _, ids in end for i in ids] == [1, 2]
    assert "".join(text for _, text, _ in end) == other.result("a").text == "a"


@pytest.mark.parametrize("stream", [True, False])
def test_what_a_job_has_goes_with_it_when_it_is_put_off(
    link: Link, other: LuaWorker, stream: bool
) -> None:
    eager = Eager(link, other, stream=stream)
    eager.reporter.responses([eager.say(1, "a")])
    eager.reporter.responses([eager.say(2)])
    before = len(eager.seen)
    eager.reporter.failed(eager.flight, MediaFetchFailed("cut"))
    [end] = eager.seen[before:]
    tokens = [("token", "a", [1]), ("token", "", [2])] if stream else [("token", "a", [1, 2])]
    assert end == [*tokens, ("retrying", "", [])]


def test_a_job_without_tokens_has_no_token_event(link: Link, other: LuaWorker) -> None:
    eager = Eager(link, other)
    eager.reporter.responses([eager.say(finish_reason="length", usage=Usage(prompt_tokens=5))])
    assert eager.seen == [[("finished", "", [])]]
