"""The thread that owns the model."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from mlxq_schemas import Usage
from mlxq_schemas.errors import DeviceFailed, EngineFailed, InvalidJob, ModelNotLoaded
from mlxq_worker.backend import Backend
from mlxq_worker.engine.request import Request, Response
from mlxq_worker.noop import EchoGenerator
from mlxq_worker.process.engine_thread import MAX_FAULTS, EngineThread


class FakeGenerator:
    """Ends a request at its first step; ``faults`` steps raise first."""

    def __init__(self) -> None:
        self.rows: list[str] = []
        self.aborted: list[str] = []
        self.faults = 0
        self.steps = 0
        self.threads: set[int] = set()
        self.hold = False
        self.sick = False
        self.error: Exception = RuntimeError("step failed")
        self.closed = False

    def insert(self, requests: Sequence[Request]) -> list[int]:
        self.threads.add(threading.get_ident())
        if any(request.request_id == "bad" for request in requests):
            raise InvalidJob("bad request")
        self.rows += [request.request_id for request in requests]
        return [1] * len(requests)

    def next(self) -> list[Response]:
        self.threads.add(threading.get_ident())
        self.steps += 1
        if self.sick or self.faults > 0:
            self.faults -= 1
            raise self.error
        ended, self.rows = self.rows, []
        if self.hold:
            self.rows = [row for row in ended if row not in self.aborted]
            ended = [row for row in ended if row in self.aborted]
        return [Response(1, row, finish_reason="stop", usage=Usage()) for row in ended]

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)

    def has_work(self) -> bool:
        return bool(self.rows) or self.sick

    def stats(self) -> dict[str, Any]:
        return {}

    def close(self) -> list[Response]:
        self.closed = True
        self.rows = []
        return []


class Room:
    def __init__(self) -> None:
        self.generator = FakeGenerator()
        self.responses: queue.SimpleQueue[Response] = queue.SimpleQueue()
        self.error: Exception | None = None
        self.engine = EngineThread(self.build, self.report)

    def build(self) -> Backend:
        if self.error is not None:
            raise self.error
        self.generator.threads.add(threading.get_ident())
        return Backend(self.generator, lambda job, _: Request(job.id), frozenset(), "fake", 4)

    def report(self, responses: Sequence[Response]) -> None:
        for response in responses:
            self.responses.put(response)

    def answer(self) -> Response:
        return self.responses.get(timeout=10)


@pytest.fixture
def room() -> Iterator[Room]:
    room = Room()
    yield room
    room.engine.stop()
    room.engine.join(10)


def test_all_is_done_in_one_thread(room: Room) -> None:
    room.engine.start()
    for name in ("a", "b"):
        room.engine.put(Request(name))
        assert room.answer().request_id == name
    room.engine.stop()
    assert room.engine.join(10)
    assert room.engine.ended
    assert len(room.generator.threads) == 1
    assert threading.get_ident() not in room.generator.threads
    assert room.generator.steps == 2  # idle in between: no step without work


def test_an_abort_follows_its_request(room: Room) -> None:
    room.generator.hold = True
    room.engine.put(Request("a"))
    room.engine.abort("a")
    room.engine.start()
    assert room.answer().request_id == "a"


def test_an_abort_ends_the_lives_put_before_it() -> None:
    """The same id is put again at once: it lives."""
    generator, ends = EchoGenerator(max_rows=4), queue.SimpleQueue[Response]()

    def report(responses: Sequence[Response]) -> None:
        for response in responses:
            if response.finished:
                ends.put(response)

    engine = EngineThread(
        lambda: Backend(generator, lambda job, _: Request(job.id), frozenset(), "noop", 4), report
    )
    engine.put(Request("a", prompt="one"))
    engine.abort("a")
    engine.put(Request("a", prompt="two"))
    engine.start()
    found = [ends.get(timeout=10) for _ in range(2)]
    engine.stop()
    assert engine.join(10)
    assert {response.uid: response.finish_reason for response in found} == {
        1: "cancelled",
        2: "stop",
    }


def test_a_failed_step_fails_each_life_once() -> None:
    generator, ends = EchoGenerator(max_rows=4), queue.SimpleQueue[Response]()
    step, faults = generator.next, [RuntimeError("once")]

    def fail_once() -> list[Response]:
        if faults:
            raise faults.pop()
        return step()

    generator.next = fail_once  # type: ignore[method-assign]
    engine = EngineThread(
        lambda: Backend(generator, lambda job, _: Request(job.id), frozenset(), "noop", 4),
        lambda responses: [ends.put(r) for r in responses if r.finished] and None,
    )
    engine.put(Request("a", prompt="one"))
    engine.put(Request("a", prompt="two"))
    engine.start()
    failed = [ends.get(timeout=10) for _ in range(2)]
    assert [(r.uid, r.finish_reason) for r in failed] == [(1, "error"), (2, "error")]
    engine.put(Request("a", prompt="three"))
    rest = {r.uid: r.finish_reason for r in (ends.get(timeout=10) for _ in range(3))}
    engine.stop()
    assert engine.join(10)
    assert rest == {1: "cancelled", 2: "cancelled", 3: "stop"}


def test_a_request_that_cannot_be_inserted_fails_alone(room: Room) -> None:
    room.engine.put(Request("bad"))
    room.engine.put(Request("good"))
    room.engine.start()
    first, second = room.answer(), room.answer()
    assert (first.request_id, type(first.error)) == ("bad", InvalidJob)
    assert (second.request_id, second.finish_reason) == ("good", "stop")


def test_a_failed_step_ends_its_rows_and_others_go_on(room: Room) -> None:
    room.generator.faults = 1
    room.engine.put(Request("a"))
    room.engine.start()
    failed = room.answer()
    assert isinstance(failed.error, EngineFailed)
    assert "step failed" in failed.error.message
    assert room.answer().request_id == "a"  # the aborted row's own end; nobody listens any more
    room.engine.put(Request("b"))
    assert room.answer().finish_reason == "stop"
    assert room.generator.aborted == ["a"]


def test_a_sick_engine_ends(room: Room) -> None:
    room.generator.sick = True
    room.engine.start()
    assert room.engine.join(10)
    assert isinstance(room.engine.error, RuntimeError)
    assert room.generator.steps == MAX_FAULTS


DEVICE = RuntimeError("[METAL] Command buffer execution failed: Caused GPU Timeout Error")


def test_errors_of_the_device_are_no_requests(room: Room) -> None:
    room.generator.error, room.generator.faults = DEVICE, MAX_FAULTS
    room.engine.put(Request("a"))
    room.engine.start()
    assert room.answer().finish_reason == "stop"
    assert room.generator.aborted == []


@pytest.mark.parametrize("error", [DEVICE, DeviceFailed("again and again")])
def test_a_device_that_stays_sick_ends_the_thread_and_no_request(
    room: Room, error: Exception
) -> None:
    room.generator.error, room.generator.sick = error, True
    room.engine.put(Request("a"))
    room.engine.start()
    assert room.engine.join(10)
    assert isinstance(room.engine.error, DeviceFailed)
    assert room.generator.steps == (MAX_FAULTS + 1 if error is DEVICE else 1)
    assert room.responses.empty()
    assert room.generator.closed


def test_a_model_that_cannot_be_loaded_is_the_threads_error(room: Room) -> None:
    room.error = ModelNotLoaded("no such folder")
    room.engine.start()
    assert room.engine.join(10)
    assert room.engine.error is room.error
    assert room.engine.backend is None
