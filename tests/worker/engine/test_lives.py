"""An abort ends one life of a request: a later one of the same id goes on."""

from __future__ import annotations

import pytest

from mlxq_worker.engine.request import Request, Response
from mlxq_worker.noop import EchoGenerator


def drain(generator) -> dict[int, list[Response]]:
    lives: dict[int, list[Response]] = {}
    while generator.has_work():
        for response in generator.next():
            lives.setdefault(response.uid, []).append(response)
    return lives


def reasons(lives: dict[int, list[Response]]) -> dict[int, str | None]:
    return {uid: responses[-1].finish_reason for uid, responses in lives.items()}


@pytest.fixture(params=["model", "noop"])
def make(request, bundled_bench):
    """A generator, and a function that gives a request by name."""
    if request.param == "model":
        texts = bundled_bench.texts(1, seed=71, max_tokens=6)[0]
        return bundled_bench.generator(max_rows=2), lambda name: Request(
            name, prompt_ids=texts.prompt_ids, sampling=texts.sampling
        )
    return EchoGenerator(2), lambda name: Request(name, prompt="abcdef")


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_an_id_means_the_lives_inserted_so_far(make, steps):
    generator, request = make
    [first] = generator.insert([request("a")])
    for _ in range(steps):
        generator.next()
    [second, other] = generator.insert([request("a"), request("b")])
    generator.abort("a")
    [third] = generator.insert([request("a")])
    found = reasons(drain(generator))
    assert found.pop(first) == found.pop(second) == "cancelled"
    assert set(found) == {other, third}
    assert set(found.values()) <= {"length", "stop"}


def test_a_uid_means_one_life(make):
    generator, request = make
    first, second, third = generator.insert([request("a")] * 3)
    generator.next()
    generator.abort(second)
    found = reasons(drain(generator))
    assert found.pop(second) == "cancelled"
    assert set(found) == {first, third}
    assert "cancelled" not in found.values()


def test_an_abort_of_what_is_over_is_forgotten(make):
    """However long nothing is stepped: the next life of that name lives."""
    generator, request = make
    [first] = generator.insert([request("a")])
    drain(generator)
    generator.abort("a")
    generator.abort(first)
    generator.abort("never seen")
    [second] = generator.insert([request("a")])
    assert reasons(drain(generator))[second] in {"length", "stop"}


def test_an_abort_in_the_middle_of_a_restart_ends_that_life(bundled_bench):
    """A row on its way back into the line is found there."""
    one, two = bundled_bench.texts(2, seed=72)
    generator = bundled_bench.generator()
    uids = generator.insert([one, two])
    for _ in range(4):
        generator.next()
    generator._send_back(next(iter(generator._decoding)))
    generator.abort(uids[0])
    found = reasons(drain(generator))
    assert found == {uids[0]: "cancelled", uids[1]: "length"}
