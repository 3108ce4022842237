"""Whatever raises in a step, wherever: every token that a row took is reported once, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest

from mlxq_schemas import Sampling
from mlxq_worker.engine import batch as batch_module
from mlxq_worker.engine.logprobs import Logprobs
from mlxq_worker.engine.prefill import Prefill
from mlxq_worker.engine.recall import Recall
from mlxq_worker.engine.request import Request
from mlxq_worker.engine.sampler import Sampler
from mlxq_worker.models import caches
from pictures import draw


class Boom(Exception):
    pass


class Trap:
    """Lets a function raise in some of its calls."""

    def __init__(self, patch: pytest.MonkeyPatch, where: Any, name: str) -> None:
        self.real = getattr(where, name)
        self.armed = 0
        self.sprung = 0
        self.after = False
        self.error: type[BaseException] = Boom
        patch.setattr(where, name, self if isinstance(where, type(caches)) else self._method())

    def _method(self) -> Callable[..., Any]:
        def method(*args: Any, **options: Any) -> Any:
            return self(*args, **options)

        return method

    def __call__(self, *args: Any, **options: Any) -> Any:
        armed, self.armed = self.armed, max(0, self.armed - 1)
        if armed and not self.after:
            self.sprung += 1
            raise self.error
        found = self.real(*args, **options)
        if armed:
            self.sprung += 1
            raise self.error
        return found


def same(tokens: list[int], logits: mx.array) -> mx.array:
    return logits


def watched(requests: list[Request], watch: bool) -> list[Request]:
    """With a processor on the first row the whole batch reads before it computes."""
    if not watch:
        return requests
    return [replace(requests[0], logits_processors=[same]), *requests[1:]]


POINTS: dict[str, tuple[Any, str]] = {
    "sampler": (Sampler, "__call__"),
    "log probabilities": (Logprobs, "of"),
    "read": (Logprobs, "known"),
    "merge": (caches, "merge"),
    "extend": (caches, "extend"),
    "custom": (batch_module, "_custom"),
}


def trap_at(point: str, patch: pytest.MonkeyPatch, generator: Any) -> Trap:
    """A trap at a point of the decode step."""
    if point == "forward":
        return Trap(patch, generator._adapter, "decode")
    if point == "filter":
        layer = generator._adapter.make_cache()[0]
        return Trap(patch, type(type(layer).merge([layer])), "filter")
    return Trap(patch, *POINTS[point])


@pytest.mark.parametrize("watch", [False, True], ids=["pipelined", "with a processor"])
def test_a_fault_at_any_point_of_a_step_loses_no_token(bench, monkeypatch, watch):
    *requests, late = bench.texts(4, seed=41)
    for n, request in enumerate((*requests, late)):
        request.sampling = request.sampling.model_copy(update={"max_tokens": 4 + n})
    solo = bench.solo([*requests, late])
    for point in (*POINTS, "forward", "filter"):
        generator = bench.generator()
        generator.insert(watched(requests, watch))
        with monkeypatch.context() as patch:
            trap = trap_at(point, patch, generator)

            def interfere(generator, step, trap=trap):
                if step == 3:
                    trap.armed = 1
                    generator.insert([late])

            assert bench.drain(generator, interfere) == solo, point
        assert trap.sprung == 1, point


@pytest.mark.parametrize("after", [False, True], ids=["before", "behind"])
def test_who_goes_on_after_an_interrupt_gets_the_same_text(bundled_bench, monkeypatch, after):
    """Ctrl-C in a step, caught by the caller: caches may be ahead of what is known of rows."""
    bench = bundled_bench
    *requests, late = bench.texts(4, seed=41)
    solo = bench.solo([*requests, late])
    for point in (*POINTS, "forward", "filter", "feed"):
        generator = bench.generator()
        generator.insert(watched(requests, point == "custom"))
        with monkeypatch.context() as patch:
            fed = point == "feed"
            trap = Trap(patch, Prefill, "feed") if fed else trap_at(point, patch, generator)
            trap.error, trap.after = KeyboardInterrupt, after
            step = generator.next

            def going_on(step=step):
                try:
                    return step()
                except KeyboardInterrupt:
                    return []

            generator.next = going_on

            def interfere(generator, step, trap=trap):
                if step == 3:
                    trap.armed = 1
                    generator.insert([late])

            assert bench.drain(generator, interfere) == solo, point
        assert trap.sprung == 1, point


@contextmanager
def text_fails(generator: Any, at: int) -> Iterator[None]:
    """The detokenizer of the next row raises at its ``at``-th token."""
    new = generator._new_detokenizer

    def failing() -> Any:
        generator._new_detokenizer = new
        detokenizer, seen = new(), []

        class Failing:
            def add(self, token: int) -> str:
                seen.append(token)
                if len(seen) == at:
                    raise Boom
                return detokenizer.add(token)

            def flush(self) -> str:
                return detokenizer.flush()

        return Failing()

    generator._new_detokenizer = failing
    yield


WAYS: dict[str, Callable[[mx.array], Any]] = {
    "raises": lambda logits: 1 / 0,
    "gives NaN": lambda logits: logits * mx.nan,
    "gives one NaN": lambda logits: mx.where(mx.arange(logits.size) == 9, mx.nan, logits),
    "gives infinities": lambda logits: mx.abs(logits) * mx.inf,
    "bans all": lambda logits: logits - mx.inf,
    "gives another shape": lambda logits: logits[:5],
    "gives nothing": lambda logits: None,
}


@pytest.mark.parametrize("watch", [False, True], ids=["beside plain rows", "beside processors"])
def test_rows_that_fail_in_a_step_take_no_token_of_others(bench, watch):
    good = bench.texts(4, seed=43)
    solo = bench.solo(good)
    nine = Sampling(max_tokens=9, ignore_eos=True)
    generator = bench.generator()
    for way, harm in WAYS.items():
        bad = Request(way, prompt_ids=[30, 31], sampling=nine)
        bad.logits_processors = [
            lambda tokens, logits, harm=harm: harm(logits) if len(tokens) == 3 else logits
        ]
        generator.insert([bad])
    with text_fails(generator, 4):
        generator.insert([Request("text", prompt_ids=[30, 31], sampling=nine)])
    generator.insert(watched(good, watch))
    outcomes = bench.drain(generator)
    for way in (*WAYS, "text"):
        failed = outcomes.pop(way)
        assert failed.last.error.code == "generation_failed", way
        assert len(failed.tokens) == failed.last.usage.completion_tokens == 3, way
    assert outcomes == solo


@pytest.mark.parametrize("logprobs", [None, 3])
def test_a_processor_may_ban_all_tokens_but_one(bench, logprobs):
    def only(tokens, logits):
        return mx.where(mx.arange(logits.size) == 77, logits, -mx.inf)

    for temperature in (0.0, 1.0):
        sampling = Sampling(max_tokens=3, ignore_eos=True, temperature=temperature, seed=1)
        request = Request("a", prompt_ids=[30, 31], sampling=sampling, logprobs=logprobs)
        request.logits_processors = [only]
        out = bench.run([request, *bench.texts(1)])["a"]
        assert (out.reason, out.tokens) == ("length", [77] * 3)
        # Log probabilities are the model's own: the ban is the processor's.
        assert [len(one.top) for one in out.logprobs] == [3] * 3 * bool(logprobs)
        assert all(one.logprob < 0 for one in out.logprobs)


def test_processors_get_float32_logits_and_tokens_of_their_own(bundled, tmp_path):
    """In any type of the model; what they do to the list of tokens is nobody's."""
    import tiny_models
    from mlxq_worker.engine.generator import BatchGenerator
    from mlxq_worker.models.load import load_model

    for dtype in ("bfloat16", "float16"):
        loaded = load_model(str(tiny_models.build("llama", tmp_path / dtype)), dtype)
        kinds = set()

        def record(tokens, logits, kinds=kinds):
            kinds.add(logits.dtype)
            tokens.append(5)
            return logits.astype(mx.bfloat16)

        sampling = Sampling(max_tokens=4, ignore_eos=True)
        generator = BatchGenerator(loaded.model, loaded.processor)
        two = [record, record]
        generator.insert([Request("a", prompt_ids=[5], sampling=sampling, logits_processors=two)])
        tokens = []
        while generator.has_work():
            tokens += [r.token for r in generator.next()]
        assert kinds == {mx.float32}
        assert len(tokens) == 4


def test_a_fault_in_the_prefill_of_another_row_loses_no_token(bench, monkeypatch):
    requests = bench.texts(3, seed=44, max_tokens=7)
    solo = bench.solo(requests)
    for where, name in ((Prefill, "reach"), (Prefill, "feed"), (Recall, "ready")):
        generator = bench.generator()
        generator.insert(watched(requests, watch=True))
        with monkeypatch.context() as patch:
            trap = Trap(patch, where, name)

            def interfere(generator, step, trap=trap):
                if step == 4:
                    trap.armed = 1
                    generator.insert([Request("bad", prompt_ids=[5, 6, 7])])

            outcomes = bench.drain(generator, interfere)
        assert outcomes.pop("bad").reason == "error", name
        assert outcomes == solo, name


@pytest.mark.parametrize("calls", [1, 2])
def test_a_fault_of_the_vision_encoder_loses_no_token(bench, monkeypatch, calls):
    """The joint call that fails is repeated picture by picture; then the row itself has failed."""
    if not bench.shows:
        pytest.skip("takes no pictures")
    requests = bench.texts(4, seed=45)
    pictured = Request(
        "pictured",
        prompt=bench.prompt(("user", 1, "Describe the image.")),
        images=[draw([("red", "circle", 4)])],
        sampling=Sampling(max_tokens=4),
        logprobs=2,
    )
    solo = bench.solo([*requests, pictured])
    generator = bench.generator()
    generator.insert(watched(requests, watch=True))
    trap = Trap(monkeypatch, generator._adapter.model, "get_input_embeddings")

    def interfere(generator, step):
        if step == 5:
            trap.armed = calls
            generator.insert([pictured])

    outcomes = bench.drain(generator, interfere)
    if outcomes["pictured"].reason == "error":
        del outcomes["pictured"], solo["pictured"]
    assert outcomes == solo


def test_a_fault_outside_of_any_row_loses_no_response(bundled_bench, monkeypatch):
    """The step raises, and the next one gives what the failed one had brought to light."""
    requests = bundled_bench.texts(3, seed=46)
    solo = bundled_bench.solo(requests)
    generator = bundled_bench.generator(max_cache_bytes=10**9)
    generator.insert([*requests, Request("bad", prompt_ids=[-1])])
    trap = Trap(monkeypatch, generator._recall, "make_room")
    outcomes: dict[str, Any] = {}
    step = 0
    while generator.has_work():
        trap.armed = int(step in (0, 3, 4))
        try:
            responses = generator.next()
        except Boom:
            responses = []
        for response in responses:
            outcomes.setdefault(response.request_id, bundled_bench.outcome()).add(response)
        step += 1
    assert trap.sprung == 3
    assert outcomes.pop("bad").reason == "error"
    assert outcomes == solo


def test_the_last_row_of_a_failed_step_is_tried_again_before_it_is_blamed(bundled_bench):
    """Of two rows one ends in the step that fails: the other need not be guilty."""
    requests = bundled_bench.texts(2, seed=47)
    requests[0].sampling = requests[0].sampling.model_copy(update={"max_tokens": 4})
    solo = bundled_bench.solo(requests)
    generator = bundled_bench.generator()
    generator.insert(watched(requests, watch=True))
    adapter = generator._adapter
    decode = adapter.decode

    def once_with_one_row(tokens, positions, cache):
        if tokens.size == 1:
            del adapter.decode
            raise Boom
        return decode(tokens, positions, cache)

    adapter.decode = once_with_one_row
    assert bundled_bench.drain(generator) == solo
