"""The backend without a model."""

from __future__ import annotations

import pytest

from mlxq_schemas import Job, Sampling
from mlxq_schemas.errors import ConfigError
from mlxq_worker.config import WorkerConfig
from mlxq_worker.engine.request import Request, Response
from mlxq_worker.noop import EchoGenerator, build_noop


def run(generator: EchoGenerator) -> list[Response]:
    responses: list[Response] = []
    while generator.has_work():
        responses += generator.next()
    return responses


def text(responses: list[Response], name: str) -> str:
    return "".join(r.text for r in responses if r.request_id == name)


def test_it_echoes_each_row() -> None:
    generator = EchoGenerator(max_rows=2)
    generator.insert([Request(name, prompt=f"text of {name}") for name in "abc"])
    assert len(generator.next()) == 2
    responses = run(generator)
    ends = {r.request_id: r for r in responses if r.finished}
    assert {name: end.finish_reason for name, end in ends.items()} == dict.fromkeys("abc", "stop")
    assert text(responses, "c") == "text of c"


def test_limits_and_prior_tokens() -> None:
    generator = EchoGenerator(max_rows=4)
    generator.insert(
        [
            Request("none", prompt="abc", sampling=Sampling(max_tokens=0)),
            Request("two", prompt="abc", sampling=Sampling(max_tokens=2)),
            Request("rest", prompt="abc", prior_ids=[ord("a")]),
            Request("done", prompt="abc", prior_ids=[ord(c) for c in "abc"]),
        ]
    )
    responses = run(generator)
    got = {n: text(responses, n) for n in ("none", "two", "rest", "done")}
    assert got == {"none": "", "two": "ab", "rest": "bc", "done": ""}
    ends = {r.request_id: r for r in responses if r.finished}
    assert (ends["none"].finish_reason, ends["two"].finish_reason) == ("length", "length")
    usage = ends["rest"].usage
    assert usage
    assert usage.completion_tokens == 3


def test_abort_and_close() -> None:
    generator = EchoGenerator(max_rows=1)
    generator.insert([Request(name, prompt="long") for name in "abc"])
    generator.next()
    for name in ("a", "b", "unknown"):
        generator.abort(name)
    ended = [r.request_id for r in generator.next() if r.finish_reason == "cancelled"]
    assert ended == ["a", "b"]
    assert [r.request_id for r in generator.close()] == ["c"]
    assert not generator.has_work()


def test_the_backend_of_a_configuration() -> None:
    backend = build_noop(WorkerConfig(model="noop:0.5", max_rows=3))
    request = backend.prepare(Job(id="a", prompt="hi"), lambda _: None)
    assert (request.prompt, backend.max_rows) == ("hi", 3)
    with pytest.raises(ConfigError, match="noop:SECONDS"):
        build_noop(WorkerConfig(model="noop:fast"))
