"""From a claimed flight to a request, or to its end."""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Iterator
from hashlib import sha256
from typing import Any, cast

import pytest
import redis

from lua_worker import LuaWorker
from mlxq_producer.embedded import EmbeddedServer
from mlxq_schemas import Job, Keys, Started, Token
from mlxq_schemas.errors import MlxqError
from mlxq_worker.backend import Backend, BlobReader
from mlxq_worker.engine.request import Prepared, Request
from mlxq_worker.noop import EchoGenerator
from mlxq_worker.process.flight import Flight, Flights, Stage, Stop
from mlxq_worker.process.prepare_pool import PreparePool
from mlxq_worker.process.report import Reporter
from mlxq_worker.queue.claim import Claim
from mlxq_worker.queue.connection import connect
from mlxq_worker.queue.entry import Entry
from tcp_proxy import TcpProxy

SPEC = b'{"prompt": "hello"}'


class Desk:
    """Stands for the reporter, and notes what becomes of each flight."""

    def __init__(self) -> None:
        self.outcomes: queue.SimpleQueue[object] = queue.SimpleQueue()
        self.starts: list[bool] = []

    def started(self, flight: Flight, restart: str = "") -> None:
        self.starts.append(bool(restart))
        flight.started = True
        flight.began = time.monotonic()

    def failed(self, flight: Flight, error: MlxqError) -> None:
        self.outcomes.put(error.code)

    def stopped(self, flight: Flight) -> None:
        assert flight.stop
        self.outcomes.put(flight.stop.value)

    def too_early(self, flight: Flight, not_before: float) -> None:
        self.outcomes.put(not_before)


class Kitchen:
    def __init__(self, client: redis.Redis, queue_name: str) -> None:
        self.desk = Desk()
        self.flights = Flights()
        self.aborted: list[str] = []
        self.given_back: list[Flight] = []
        self.error: Exception | None = None
        self.during: list[Flight] = []
        backend = Backend(EchoGenerator(4), self.prepare, frozenset(), "fake", 4)
        self.pool = PreparePool(
            1,
            backend,
            frozenset({"m"}),
            client,
            Keys(queue_name),
            flights=self.flights,
            reporter=cast(Reporter, self.desk),
            put=self.desk.outcomes.put,
            abort=self.aborted.append,
            give_back=self.given_back.extend,
        )

    def prepare(self, job: Job, read_blob: BlobReader) -> Request:
        if self.error is not None:
            raise self.error
        for flight in self.during:
            flight.stop = Stop.CANCELLED
        media = (job.prompt or "",)
        prepared = Prepared([1], media=media)
        return Request(job.id, prepared=prepared, prompt=job.prompt, sampling=job.sampling)

    def flight(self, spec: bytes | None = SPEC, **fields: Any) -> Flight:
        entry = Entry("s", "1-0", "a")
        flight = self.flights.reserve(entry)
        assert flight is not None
        self.flights.claimed(flight, Claim(entry, "a", epoch=1, spec=spec, **fields))
        return flight

    def outcome(self, flight: Flight) -> Any:
        self.pool.submit(flight)
        return self.desk.outcomes.get(timeout=20)


@pytest.fixture
def kitchen(redis_client: redis.Redis, queue: str) -> Iterator[Kitchen]:
    kitchen = Kitchen(redis_client, queue)
    yield kitchen
    kitchen.pool.close()


def test_a_good_job_becomes_a_request_of_its_claim(kitchen: Kitchen) -> None:
    flight = kitchen.flight()
    request = kitchen.outcome(flight)
    assert isinstance(request, Request)
    assert (request.request_id, list(request.prior_ids)) == ("a:1", [])
    assert flight.stage is Stage.RUNNING
    assert flight.media == ("hello",)
    assert kitchen.desk.starts == [False]


def test_a_sampled_job_without_a_seed_gets_one_from_its_id(kitchen: Kitchen) -> None:
    flight = kitchen.flight(b'{"prompt": "p", "sampling": {"temperature": 0.5, "top_k": 3}}')
    request = kitchen.outcome(flight)
    assert request.sampling.seed == int(sha256(b"a").hexdigest()[:16], 16) // 2
    assert (request.sampling.temperature, request.sampling.top_k) == (0.5, 3)
    assert flight.job
    assert flight.job.sampling == request.sampling  # which the result shows


@pytest.mark.parametrize(
    ("sampling", "seed"), [({"temperature": 1.0, "seed": 0}, 0), ({"temperature": 0.0}, None)]
)
def test_other_jobs_keep_their_seed_or_need_none(
    kitchen: Kitchen, sampling: dict[str, float], seed: int | None
) -> None:
    spec = json.dumps({"prompt": "p", "sampling": sampling}).encode()
    assert kitchen.outcome(kitchen.flight(spec)).sampling.seed == seed


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        (None, "bad_message"),
        (b"\xc1 not msgpack", "bad_message"),
        (b"[1]", "bad_message"),
        (b"{broken", "bad_message"),
        (b'{"v": 99, "prompt": "p"}', "unknown_version"),
        (b'{"prompt": 5}', "invalid_job"),
        (b'{"id": "b", "prompt": "p"}', "invalid_job"),
        (b'{"prompt": " "}', "empty_prompt"),
        (b'{"prompt": "p", "surprise": 1}', "unsupported"),
        (b'{"prompt": "p", "tools": []}', "unsupported"),
        (b'{"prompt": "p", "deadline": 1}', "expired"),
        (b'{"prompt": "p", "deadline": 1, "not_before": 2}', "invalid_job"),
        (b'{"prompt": "p", "timeout": 0}', "invalid_job"),
        (b'{"prompt": "p", "timeout": 1e-9}', "timeout"),
        (b'{"prompt": "p", "max_attempts": 0}', "invalid_job"),
        (b'{"prompt": "p", "model": "other"}', "unknown_model"),
        (b" " * (32 * 1024 * 1024 + 1), "too_large"),
    ],
)
def test_a_bad_job_fails_with_its_code(kitchen: Kitchen, spec: bytes | None, code: str) -> None:
    assert kitchen.outcome(kitchen.flight(spec)) == code


def test_a_job_that_saw_three_workers_die_is_not_computed(kitchen: Kitchen) -> None:
    assert kitchen.outcome(kitchen.flight(deaths=3)) == "poison"
    assert kitchen.desk.starts == []


def test_an_unexpected_error_is_internal(kitchen: Kitchen) -> None:
    kitchen.error = ZeroDivisionError("secret detail")
    assert kitchen.outcome(kitchen.flight()) == "internal"


def test_a_cancelled_job_is_not_prepared(kitchen: Kitchen) -> None:
    kitchen.error = ZeroDivisionError()
    assert kitchen.outcome(kitchen.flight(cancelled=True)) == "cancelled"


def test_a_job_cancelled_while_it_is_prepared_does_not_run(kitchen: Kitchen) -> None:
    flight = kitchen.flight()
    kitchen.during = [flight]
    assert kitchen.outcome(flight) == "cancelled"


def test_a_job_before_its_time_is_put_off(kitchen: Kitchen) -> None:
    due = time.time() + 3600
    spec = f'{{"prompt": "p", "not_before": {due}}}'.encode()
    assert kitchen.outcome(kitchen.flight(spec)) == due
    assert kitchen.desk.starts == []


def test_a_read_that_the_server_refuses_may_pass(
    kitchen: Kitchen, redis_client: redis.Redis, queue: str
) -> None:
    redis_client.set(Keys(queue).events("a"), "no stream", ex=60)
    assert kitchen.outcome(kitchen.flight(attempt=2, seq=2)) == "queue_unavailable"


def test_a_second_attempt_goes_on_after_the_first(
    kitchen: Kitchen, redis_client: redis.Redis, queue: str
) -> None:
    other = LuaWorker(redis_client, queue)
    other.submit(Job(id="a", prompt="hello"))
    [(entry, _)] = other.read()
    epoch = other.claim("a", entry)[1]
    other.append("a", epoch, Started(job="a"), Token(job="a", text="he", ids=[1, 2]))
    flight = kitchen.flight(attempt=2, seq=3)
    request = kitchen.outcome(flight)
    assert list(request.prior_ids) == [1, 2]
    assert flight.text == ["he"]
    assert (flight.generated, flight.usage.prompt_tokens) == (2, 1)


def test_a_second_attempt_restarts_where_ids_are_unknown(
    kitchen: Kitchen, redis_client: redis.Redis, queue: str
) -> None:
    other = LuaWorker(redis_client, queue)
    other.submit(Job(id="a", prompt="hello"))
    [(entry, _)] = other.read()
    other.append("a", other.claim("a", entry)[1], Token(job="a", text="he"))
    flight = kitchen.flight(attempt=2, seq=2)
    assert list(kitchen.outcome(flight).prior_ids) == []
    assert flight.text == []
    assert kitchen.desk.starts == [True]


def test_a_server_that_goes_away_is_waited_for(server: EmbeddedServer, queue: str) -> None:
    with TcpProxy(server.url) as proxy:
        client = connect(proxy.url, "test")
        kitchen = Kitchen(client, queue)
        proxy.swallow("XRANGE")
        assert isinstance(kitchen.outcome(kitchen.flight(attempt=2, seq=2)), Request)
        assert proxy.swallowed == 1
        kitchen.pool.close()
        client.close()
