"""Nothing in a job is dropped in silence: each field is honoured, or refused by its path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgpack
import pytest

from mlxq_schemas import (
    AudioPart,
    ImagePart,
    Job,
    LoadError,
    MediaRef,
    Message,
    Sampling,
    TextPart,
    VideoPart,
    wire,
)
from mlxq_schemas.errors import EmptyPrompt, InvalidJob, JobError, Unsupported
from mlxq_schemas.support import HONOURED, JOB

TESTS = Path(__file__).parents[1]
WORKER, PRODUCER = "worker/process/test_worker.py", "producer/test_submit.py"
SAMPLER, TEXT = "worker/engine/test_sampling.py", "worker/engine/test_text.py"
CLAIMS, IMAGES = "worker/process/test_prepare_pool.py", "worker/prepare/test_preparer.py"
SOURCES, SOLO = "worker/prepare/test_media_source.py", "worker/engine/test_equality.py"

EVIDENCE: dict[type, dict[str, tuple[str, str]]] = {
    Job: {
        "v": ("schemas/test_wire.py", "UnknownVersion"),
        "id": ("schemas/test_wire.py", "calls itself"),
        "model": (WORKER, "unknown_model"),
        "messages": (IMAGES, "test_every_field_of_the_messages"),
        "prompt": (WORKER, 'text == "fine"'),
        "images": (IMAGES, "images"),
        "sampling": (WORKER, "sampler"),
        "chat_template_kwargs": ("worker/prepare/test_preparer.py", "chat_template_kwargs"),
        "priority": ("worker/queue/test_intake.py", "priority"),
        "not_before": ("worker/process/test_semantics.py", "not_before"),
        "deadline": ("worker/process/test_semantics.py", "deadline"),
        "timeout": ("worker/process/test_semantics.py", "timeout"),
        "max_attempts": ("worker/process/test_report.py", "max_attempts"),
        "metadata": ("schemas/test_wire.py", '"metadata": MAPS'),
        "stream": (WORKER, "stream=False"),
        "logprobs": ("worker/process/test_bundled.py", "logprobs"),
    },
    Message: {"role": (IMAGES, '"role"'), "content": (IMAGES, '"content"')},
    TextPart: {"type": (IMAGES, '"type": "text"'), "text": (IMAGES, '"text"')},
    ImagePart: {"type": (IMAGES, '"image_url"'), "image_url": (IMAGES, '"image_url"')},
    VideoPart: {"type": ("schemas/test_support.py", "video_url")},
    AudioPart: {"type": ("schemas/test_support.py", "input_audio")},
    MediaRef: {
        "url": (SOURCES, "url"),
        "name": ("worker/prepare/test_media_image.py", "name"),
        "error": (SOURCES, "LoadError"),
        "detail": ("schemas/test_support.py", '"detail": "auto"'),
    },
    LoadError: {"code": (SOURCES, "code"), "message": (SOURCES, "message")},
    Sampling: {
        "max_tokens": (WORKER, "max_tokens=3"),
        "temperature": (SAMPLER, "temperature"),
        "top_p": (SAMPLER, "top_p"),
        "top_k": (SAMPLER, "top_k"),
        "min_p": (SAMPLER, "min_p"),
        "presence_penalty": (SAMPLER, "presence_penalty"),
        "frequency_penalty": (SAMPLER, "frequency_penalty"),
        "repetition_penalty": (SAMPLER, "repetition_penalty"),
        "seed": (SAMPLER, "seed"),
        "stop": (TEXT, "stop"),
        "logit_bias": (SAMPLER, "logit_bias"),
        "ignore_eos": ("worker/engine/test_isolation.py", "ignore_eos"),
    },
}
"""Where each honoured field is shown to have its effect: a test file, and words in it."""

REF = {"url": "https://x/a.png"}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
ASKED = {"role": "user", "content": "what?"}


def turn(**fields: Any) -> dict[str, Any]:
    return {"messages": [ASKED, {"role": "assistant", "content": "so", **fields}, ASKED]}


def part(kind: str, **fields: Any) -> dict[str, Any]:
    given = {"type": kind, **({} if kind == "text" else {kind: REF}), **fields}
    return {"messages": [{"role": "user", "content": [{"type": "text", "text": "what?"}, given]}]}


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"prompt": "a", "response_format": {"type": "regex", "regex": "a"}}, "response_format"),
    ({"prompt": "a", "response_format": {"type": "json_schema", "json_schema": {}}}, "response_f"),
    ({"prompt": "a", "response_format": {"type": "json_object"}}, "response_format"),
    ({"prompt": "a", "response_format": {"type": "regex", "rule": "a"}}, "response_format"),
    ({"prompt": "a", "tools": []}, "tools"),
    ({"prompt": "a", "callback": "https://x"}, "callback"),
    ({"prompt": "a", "videos": ["x"]}, "videos"),
    ({"prompt": "a", "audios": ["x"]}, "audios"),
    ({"prompt": "a", "colour": 0}, "colour"),
    ({"prompt": "a", "n": 2}, "n"),
    ({"prompt": "a", "sampling": {"n": 2}}, "sampling.n"),
    ({"prompt": "a", "sampling": {"mood": False}}, "sampling.mood"),
    ({"prompt": "a", "images": [REF, {**REF, "max_pixels": 9}]}, "images[1].max_pixels"),
    ({"prompt": "a", "images": [{**REF, "detail": "high"}]}, "images[0].detail"),
    (turn(tool_calls=[CALL]), "messages[1].tool_calls"),
    (turn(content=None, tool_calls=[CALL]), "messages[1].tool_calls"),
    (turn(reasoning_content="hm"), "messages[1].reasoning_content"),
    (turn(name="b"), "messages[1].name"),
    (turn(prefix=True), "messages[1].prefix"),
    (turn(role="tool", tool_call_id="c1"), "messages[1].tool_call_id"),
    (turn(role="tool"), "messages[1].role (tool)"),
    (part("text", text="b", cache_control={}), "messages[0].content[1].cache_control"),
    (part("image_url", max_pixels=9), "messages[0].content[1].max_pixels"),
    (part("image_url", image_url={**REF, "detail": "low"}),
     "messages[0].content[1].image_url.detail"),
    (part("image_url", image_url={**REF, "min_pixels": 9}),
     "messages[0].content[1].image_url.min_pixels"),
    (part("image_url", image_url={**REF, "error": {"code": "a", "message": "b", "trace": "c"}}),
     "messages[0].content[1].image_url.error.trace"),
    (part("video_url"), "messages[0].content[1].video_url"),
    (part("input_audio"), "messages[0].content[1].input_audio"),
    (part("input_audio", input_audio={"data": "AA==", "format": "wav"}),
     "messages[0].content[1].input_audio"),
]  # fmt: skip

TAKEN: list[dict[str, Any]] = [
    turn(refusal=None, tool_calls=None, name=None, function_call=None),
    part("image_url", image_url={**REF, "detail": "auto"}),
    part("image_url", image_url={**REF, "detail": None, "max_pixels": None}),
    part("image_url", image_url="https://x/a.png"),
    part("image_url", image_url={**REF, "name": "a.png"}),
    part("image_url", image_url={**REF, "error": {"code": "media_not_found", "message": "gone"}}),
    {"prompt": "a", "callback": None, "tools": None, "response_format": None, "colour": None},
    {"prompt": "a", "videos": [], "audios": [], "images": []},
    {"prompt": "a", "sampling": {"stop": "END", "logit_bias": {"5": 1}, "max_tokens": 5.0}},
    {"prompt": "a", "sampling": {"temperature": 1, "top_p": 1}, "stream": False, "deadline": 9},
]


@pytest.mark.parametrize("kind", list(EVIDENCE), ids=lambda kind: kind.__name__)
def test_every_field_is_honoured_by_evidence_or_refused(kind: type[Any]) -> None:
    """A new field fails here until it is decided what becomes of it."""
    honoured = JOB if kind is Job else HONOURED[kind]
    assert honoured == EVIDENCE[kind].keys()
    for file, words in EVIDENCE[kind].values():
        assert words in (TESTS / file).read_text(), f"{file} does not show {words}"
    last_names = {
        path.partition(" ")[0].rpartition(".")[2].partition("[")[0] for _, path in REFUSED
    }
    undecided = set(kind.model_fields) - honoured - last_names - {"response_format"}
    assert not undecided


def test_every_part_of_a_job_has_its_decisions() -> None:
    assert {Job, *HONOURED} == EVIDENCE.keys()


@pytest.mark.parametrize(("fields", "path"), REFUSED, ids=[path for _, path in REFUSED])
def test_refused_by_its_path(fields: dict[str, Any], path: str) -> None:
    with pytest.raises(Unsupported) as caught:
        wire.parse_job(fields).check()
    assert f": {path}" in caught.value.message or f", {path}" in caught.value.message
    caught.value.message.encode()


def test_all_that_is_refused_is_named_at_once() -> None:
    with pytest.raises(Unsupported, match=r"callback, colour; leave these out"):
        wire.parse_job({"prompt": "a", "callback": "x", "colour": 1}).check()


@pytest.mark.parametrize("fields", TAKEN)
def test_taken(fields: dict[str, Any]) -> None:
    assert wire.parse_job(fields).check()
    data = msgpack.packb({"v": 1, **fields})
    assert wire.decode_job(data, "j1").check()


@pytest.mark.parametrize("content", [None, []])
def test_a_message_without_content(content: object) -> None:
    fields = {"messages": [ASKED, {"role": "assistant", "content": content}, ASKED]}
    with pytest.raises(InvalidJob, match=r"messages\[1\]\.content is missing"):
        wire.parse_job(fields).check()
    with pytest.raises(EmptyPrompt):
        wire.parse_job({"messages": [{"role": "user", "content": content}]}).check()


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"sampling": {"max_tokens": "5"}}, "max_tokens"),
        ({"sampling": {"max_tokens": True}}, "max_tokens"),
        ({"sampling": {"max_tokens": 5.5}}, "max_tokens"),
        ({"sampling": {"temperature": "0.5"}}, "temperature"),
        ({"sampling": {"temperature": True}}, "temperature"),
        ({"sampling": {"top_p": True}}, "top_p"),
        ({"sampling": {"seed": "7"}}, "seed"),
        ({"sampling": {"seed": False}}, "seed"),
        ({"sampling": {"ignore_eos": 1}}, "ignore_eos"),
        ({"sampling": {"ignore_eos": "no"}}, "ignore_eos"),
        ({"sampling": {"logit_bias": {"5": True}}}, "logit_bias"),
        ({"sampling": {"logit_bias": {"5": 1, "05": 2}}}, "logit_bias"),
        ({"sampling": {"stop": 5}}, "stop"),
        ({"sampling": {"stop": [5]}}, "stop"),
        ({"stream": "false"}, "stream"),
        ({"stream": 0}, "stream"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": "3"}, "logprobs"),
        ({"deadline": "9"}, "deadline"),
        ({"timeout": True}, "timeout"),
        ({"max_attempts": True}, "max_attempts"),
        ({"prompt": 5}, "prompt"),
        ({"model": 5}, "model"),
        ({"images": "a.png"}, "images"),
    ],
)
def test_a_value_of_another_kind_is_not_taken_for_what_it_resembles(
    fields: dict[str, Any], name: str
) -> None:
    with pytest.raises(InvalidJob, match=name):
        wire.parse_job({"prompt": "a", **fields})


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"prompt": "half \ud83d"}, "prompt holds half"),
        ({"prompt": "a", "model": "\udcff"}, "model holds half"),
        ({"prompt": "a", "metadata": {"tags": ["x", "\ud83d"]}}, r"metadata.tags[1] holds half"),
        ({"prompt": "a", "metadata": {"\ud83d": 1}}, "metadata has a name"),
        ({"prompt": "a", "\ud83d": 1}, "the name of a field: holds half"),
        ({"prompt": "a", "metadata": {"score": float("nan")}}, "metadata.score is nan"),
        ({"prompt": "a", "metadata": {"score": [float("-inf")]}}, "metadata.score[0] is -inf"),
        ({"prompt": "a", "metadata": {"n": 2**70}}, "metadata.n is a number of more than 64"),
        ({"prompt": "a", "metadata": {"a": {1: 2}}}, "metadata.a has a name that is no text"),
        ({"prompt": "a", "chat_template_kwargs": {"x": float("inf")}}, "chat_template_kwargs.x"),
        ({"prompt": "a", "images": ["\udcff.png"]}, "images[0]: holds half"),
        ({"prompt": "a", "sampling": {"stop": ["\ud83d"]}}, "sampling.stop[0]: holds half"),
        (turn(content="\ud83d"), "messages[1].content holds half"),
        (part("text", text="\ude00"), "messages[0].content[1].text holds half"),
    ],
)
def test_what_would_arrive_as_something_else_is_named(fields: dict[str, Any], path: str) -> None:
    with pytest.raises(JobError) as caught:
        wire.parse_job(fields).check()
    assert caught.value.code == "invalid_job"
    assert path in caught.value.message
    caught.value.message.encode()


def test_a_job_written_by_hand_is_judged_alike() -> None:
    spec = b'{"messages": [{"role": "user", "content": "a", "name": "b"}], "metadata": {"x": NaN}}'
    with pytest.raises(Unsupported, match=r"messages\[0\]\.name"):
        wire.decode_job(spec, "j1").check()
    with pytest.raises(InvalidJob, match=r"prompt holds half"):
        wire.decode_job(b'{"prompt": "\\ud83d"}', "j1").check()
    with pytest.raises(InvalidJob, match=r"metadata\.x is nan"):
        wire.decode_job(b'{"prompt": "a", "metadata": {"x": NaN}}', "j1").check()
