"""A row that goes on after tokens of an earlier attempt ends as the row that was never cut."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from mlxq_schemas import Sampling, Usage
from mlxq_worker.engine.generator import BatchGenerator
from mlxq_worker.engine.request import Request, Response
from mlxq_worker.engine.row import Row
from mlxq_worker.engine.text import StopMatcher, make_detokenizers
from pictures import draw


@dataclass
class Told:
    """What one row said: a token, its text and its log probability at each step, and its end."""

    tokens: list[int] = field(default_factory=list[int])
    pieces: list[str] = field(default_factory=list[str])
    logprobs: list[float] = field(default_factory=list[float])
    last: Response | None = None

    def add(self, response: Response) -> None:
        if response.token is not None:
            self.tokens.append(response.token)
            self.pieces.append(response.text)
        else:
            assert response.text == ""
        if response.logprobs is not None:
            assert response.logprobs.id == response.token
            self.logprobs.append(response.logprobs.logprob)
        if response.finished:
            assert response.error is None, response.error
            self.last = response

    @property
    def end(self) -> tuple[str | None, Usage | None]:
        return (self.last.finish_reason, self.last.usage) if self.last else (None, None)


def tell(generator: BatchGenerator, requests: Iterable[Request]) -> dict[str, Told]:
    """Run requests together to their ends."""
    requests = list(requests)
    told = {request.request_id: Told() for request in requests}
    generator.insert(requests)
    while generator.has_work():
        for response in generator.next():
            told[response.request_id].add(response)
    return told


def cuts(tokens: Sequence[int]) -> set[int]:
    """Numbers of tokens after which a row is cut: early, halfway, before its end, and at it."""
    return {1, len(tokens) // 2, len(tokens) - 1, len(tokens)}


def check_rest(whole: Told, known: int, rest: Told) -> None:
    """``rest`` is what lacked of ``whole`` after ``known`` tokens."""
    assert rest.tokens == whole.tokens[known:]
    assert rest.pieces == whole.pieces[known:]
    assert rest.logprobs == pytest.approx(whole.logprobs[known:], abs=1e-4)
    assert rest.end == whole.end


def late(pieces: Sequence[str]) -> str:
    """A stop string over two tokens that first occurs late; "" if there is none."""
    text = "".join(pieces)
    for n in range(len(pieces) - 2, 3, -1):
        stop = pieces[n][-1:] + pieces[n + 1][:1]
        if len(stop) == 2 and "\ufffd" not in stop and text.find(stop) > len("".join(pieces[:3])):
            return stop
    return ""


def test_every_end_is_the_same_after_any_cut(bench) -> None:
    prompt = bench.prompt(("user", 1, "Describe the image in detail."))
    images = [draw([("red", "circle", 4)])] if bench.shows else []
    hot = Sampling(max_tokens=12, temperature=1.0, seed=5)
    base = Request("length", prompt, images=images, sampling=hot, logprobs=2)
    base = replace(base, sampling=hot.model_copy(update={"ignore_eos": True}))
    length = tell(bench.generator(), [base])["length"]
    first = [length.tokens.index(token) for token in length.tokens]
    eos = length.tokens[max(first[:9])]
    ends = {
        "length": base,
        "eos": replace(base, request_id="eos", sampling=hot),
        "stop": replace(base, request_id="stop", stop=[late(length.pieces) or "zzz"]),
    }
    options = {"eos": frozenset({eos, length.tokens[-1] + 1}), "max_rows": 1}
    whole = tell(bench.generator(**options), ends.values())
    assert whole["length"].tokens == length.tokens
    assert whole["eos"].end[0] == "stop"
    assert whole["eos"].tokens == length.tokens[: max(first[:9]) + 1]
    for name, told in whole.items():
        resumed = {
            known: replace(ends[name], request_id=str(known), prior_ids=told.tokens[:known])
            for known in cuts(told.tokens)
        }
        rest = tell(bench.generator(**options), resumed.values())
        for known in resumed:
            check_rest(told, known, rest[str(known)])


@pytest.mark.parametrize(
    ("name", "sampling", "options"),
    [
        ("the end of the sequence", {}, {}),
        ("a stop string", {"stop": ["8"]}, {}),
        ("most tokens", {"max_tokens": 5}, {}),
        ("the context", {}, {"context": 5}),
        ("nothing wanted", {"max_tokens": 0}, {}),
    ],
)
def test_a_row_that_has_ended_computes_nothing(
    bundled_bench, name: str, sampling: dict[str, Any], options: dict[str, int]
) -> None:
    del name
    prompt = bundled_bench.prompt(("user", 0, "Count from 3 to 12."))
    request = Request("a", prompt, sampling=Sampling(**sampling))
    if options:
        ids = bundled_bench.loaded.tokenizer(prompt)["input_ids"]
        options = {"context": len(ids) + options["context"]}
    whole = tell(bundled_bench.generator(**options), [request])["a"]
    generator = bundled_bench.generator(**options)
    rest = tell(generator, [replace(request, prior_ids=whole.tokens)])["a"]
    check_rest(whole, len(whole.tokens), rest)
    stats = generator.stats()
    assert (stats["generated_tokens"], stats["prompt_tokens"]) == (0, 0)


def byte_fallback() -> PreTrainedTokenizerFast:
    vocab = {"<unk>": 0, "</s>": 1, "▁hi": 2, "E": 3, "N": 4, "D": 5}
    vocab |= {f"<0x{byte:02X}>": 6 + byte for byte in range(256)}
    core = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>"))
    core.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    core.add_special_tokens([AddedToken("</s>", special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="</s>", unk_token="<unk>")


HI, EOS, END = 2, 1, [3, 4, 5]
GOOD = [6 + byte for byte in "好".encode()]
NEW_DETOKENIZER = make_detokenizers(byte_fallback())


@pytest.mark.parametrize(
    ("tokens", "text", "reason"),
    [
        ([HI, *GOOD, HI, *GOOD], "hi好 hi好", "length"),
        ([HI, *GOOD, HI, HI, *GOOD[:2]], "hi好 hi hi\ufffd", "length"),
        ([HI, *GOOD[:2], EOS], "hi\ufffd", "stop"),
        ([HI, *GOOD[:1], *END], "hi\ufffd", "stop"),
        ([HI, *END[:2], *GOOD[:2], EOS], "hiEN\ufffd", "stop"),
        ([HI, *GOOD, *END[:2], EOS], "hi好EN", "stop"),
        ([HI, HI, HI, HI, *END[:2], HI, *END[:1]], "hi hi hi hiEN hiE", "length"),
        ([HI, HI, HI, *GOOD, *END[:2]], "hi hi hi好EN", "length"),
    ],
)
def test_text_over_attempts_is_the_text_in_one_go(
    tokens: list[int], text: str, reason: str
) -> None:
    def row(prior: Sequence[int]) -> Row:
        request = Request("a", prompt_ids=[HI], prior_ids=prior)
        made = Row(1, request, NEW_DETOKENIZER(), StopMatcher(["END"]), frozenset({0, EOS}), 8, 0)
        made.recall_prior()
        return made

    whole = row([])
    pieces = [whole.take(token) for token in tokens]
    assert ("".join(pieces), whole.finish_reason) == (text, reason)
    assert all(one.finish_reason is None for one in (row(tokens[:n]) for n in range(len(tokens))))
    for known in range(len(tokens) + 1):
        again = row(tokens[:known])
        assert [again.take(token) for token in tokens[known:]] == pieces[known:]
        assert (again.finish_reason, again.tokens) == (reason, tokens)


def test_a_stop_string_that_the_last_flush_completes_is_the_reason() -> None:
    request = Request("a", prompt_ids=[HI])
    row = Row(1, request, NEW_DETOKENIZER(), StopMatcher(["\ufffd"]), frozenset(), 2, 0)
    assert [row.take(token) for token in (HI, GOOD[0])] == ["hi", ""]
    assert row.finish_reason == "stop"
