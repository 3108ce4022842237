"""Bytes there and back: whatever is valid survives, whatever is not has a clear error."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from mlxq_schemas import (
    AudioPart,
    Cancelled,
    ExpiredEvent,
    Failed,
    Finished,
    ImagePart,
    Job,
    JsonSchemaFormat,
    MediaRef,
    Message,
    Progress,
    Provenance,
    Queued,
    RegexFormat,
    Result,
    Retrying,
    Sampling,
    Started,
    TextPart,
    Timing,
    Token,
    TokenLogprob,
    Usage,
    VideoPart,
    wire,
)
from mlxq_schemas.errors import BadMessage, InvalidJob, JobError, TooLarge, UnknownVersion

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.:@-]{0,20}", fullmatch=True)
TEXTS = st.text(max_size=30)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
COUNTS = st.integers(0, 2**40)
PLAIN: SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | FLOATS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
MAPS = st.dictionaries(TEXTS, PLAIN, max_size=3)
REFS = st.builds(MediaRef, url=st.text(min_size=1, max_size=30))
PARTS = st.one_of(
    st.builds(TextPart, text=TEXTS),
    st.builds(ImagePart, image_url=REFS),
    st.builds(VideoPart, video_url=REFS),
    st.builds(AudioPart, input_audio=REFS),
)
MESSAGES = st.builds(
    Message,
    role=st.sampled_from(["system", "developer", "user", "assistant", "tool"]),
    content=TEXTS | st.lists(PARTS, max_size=4),
)
SAMPLINGS = st.builds(
    Sampling,
    max_tokens=st.integers(0, 1_000_000),
    temperature=st.floats(0, 10),
    top_p=st.floats(0.01, 1),
    top_k=st.integers(0, 1000),
    min_p=st.floats(0, 1),
    presence_penalty=st.floats(-2, 2),
    frequency_penalty=st.floats(-2, 2),
    repetition_penalty=st.floats(0.1, 10),
    seed=st.none() | st.integers(0, 2**63 - 1),
    stop=st.lists(st.text(min_size=1, max_size=5), max_size=3),
    logit_bias=st.dictionaries(st.integers(0, 200_000), st.floats(-100, 100), max_size=3),
    ignore_eos=st.booleans(),
)
FORMATS = st.builds(JsonSchemaFormat, json_schema=MAPS) | st.builds(RegexFormat, regex=TEXTS)
COMMON = {
    "id": NAMES,
    "model": st.none() | TEXTS,
    "sampling": SAMPLINGS,
    "response_format": st.none() | FORMATS,
    "tools": st.none() | st.lists(MAPS, max_size=2),
    "chat_template_kwargs": MAPS,
    "priority": st.sampled_from(["high", "normal", "low"]),
    "not_before": st.none() | st.floats(0, 1e9),
    "deadline": st.none() | st.floats(1e9, 1e10, exclude_min=True),
    "timeout": st.none() | st.floats(0.1, 1e6),
    "max_attempts": st.none() | st.integers(1, 100),
    "metadata": MAPS,
    "callback": st.none() | TEXTS,
    "stream": st.booleans(),
    "logprobs": st.none() | st.integers(0, 20),
}
JOBS = st.one_of(
    st.builds(Job, messages=st.lists(MESSAGES, max_size=3), **COMMON),
    st.builds(Job, prompt=TEXTS, images=st.lists(REFS, max_size=3), **COMMON),
)

HEAD = {"job": NAMES, "attempt": COUNTS, "seq": COUNTS, "t": FLOATS}
USAGES = st.builds(
    Usage,
    prompt_tokens=COUNTS,
    cached_tokens=COUNTS,
    completion_tokens=COUNTS,
    images=COUNTS,
)
LOGPROBS = st.builds(
    TokenLogprob,
    id=COUNTS,
    logprob=FLOATS,
    top=st.dictionaries(COUNTS, FLOATS, max_size=2),
)
REASONS = st.sampled_from(["stop", "length"])
EVENTS = st.one_of(
    st.builds(Queued, **HEAD),
    st.builds(Started, worker=TEXTS, model=TEXTS, **HEAD),
    st.builds(Progress, done=COUNTS, total=COUNTS, **HEAD),
    st.builds(
        Token,
        text=TEXTS,
        ids=st.lists(COUNTS, max_size=3),
        logprobs=st.none() | st.lists(LOGPROBS, max_size=2),
        **HEAD,
    ),
    st.builds(Retrying, code=TEXTS, message=TEXTS, delay=FLOATS, restart=st.booleans(), **HEAD),
    st.builds(Finished, reason=REASONS, text=TEXTS, usage=USAGES, **HEAD),
    st.builds(Failed, code=TEXTS, message=TEXTS, **HEAD),
    st.builds(Cancelled, **HEAD),
    st.builds(ExpiredEvent, **HEAD),
)
RESULTS = st.builds(
    Result,
    type=st.sampled_from(["finished", "failed", "cancelled", "expired"]),
    reason=st.none() | REASONS,
    text=TEXTS,
    code=st.none() | TEXTS,
    message=st.none() | TEXTS,
    usage=USAGES,
    timing=st.builds(Timing, queued=FLOATS, prepare=FLOATS, prefill=FLOATS, decode=FLOATS),
    provenance=st.none()
    | st.builds(
        Provenance,
        model=TEXTS,
        worker=TEXTS,
        attempt=COUNTS,
        media=st.lists(TEXTS, max_size=2),
        sampler=MAPS,
    ),
    **HEAD,
)


@given(JOBS)
def test_job_round_trip(job: Job) -> None:
    decoded = wire.decode_job(wire.encode_job(job), job.id)
    assert decoded == job
    assert decoded.digest() == job.digest()


@given(JOBS)
def test_job_round_trip_as_json_text(job: Job) -> None:
    assert wire.decode_job(job.model_dump_json().encode(), job.id) == job


@given(EVENTS)
def test_event_round_trip(event: Any) -> None:
    assert wire.decode_event(wire.encode_event(event)) == event


@given(RESULTS)
def test_result_round_trip(result: Result) -> None:
    assert wire.decode_result(wire.encode_event(result)) == result


@given(st.one_of(EVENTS, RESULTS))
def test_head_of_an_unsent_event_leaves_room_for_its_number(event: Any) -> None:
    data = wire.encode_event(event.model_copy(update={"seq": -1}))
    assert 0x80 <= data[0] < 0x8F  # a map whose size is in its first byte, not yet full
    assert "seq" not in msgpack.unpackb(data, strict_map_key=False)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_job_or_a_job_error(data: bytes) -> None:
    with suppress(JobError):
        assert wire.decode_job(data, "j1").id == "j1"


@given(PLAIN)
def test_any_value_is_a_job_or_a_job_error(value: Any) -> None:
    for data in (msgpack.packb(value), json.dumps(value).encode()):
        test_any_bytes_are_a_job_or_a_job_error.hypothesis.inner_test(data)  # type: ignore[attr-defined]


def test_a_bad_job_without_an_id_is_no_empty_name() -> None:
    with pytest.raises(InvalidJob, match=r"^the job: prompt"):
        wire.parse_job({"prompt": 7})


@given(MAPS)
def test_any_fields_are_an_event_or_a_bad_message(fields: dict[str, Any]) -> None:
    with pytest.raises(BadMessage):
        wire.decode_event(msgpack.packb({**fields, "v": 1, "type": "no such type"}))


@pytest.mark.parametrize(
    ("data", "kind", "message"),
    [
        (b"", BadMessage, "neither msgpack nor JSON"),
        (b"hello", BadMessage, "neither msgpack nor JSON"),
        (b"\x07", BadMessage, "is a int, not a map"),
        (b"{not json}", BadMessage, "neither msgpack nor JSON"),
        (b"{" * 100_000, BadMessage, "neither msgpack nor JSON"),
        (b'{"a":' * 100_000, BadMessage, "neither msgpack nor JSON"),
        (b"\xff{}", BadMessage, "neither msgpack nor JSON"),
        (b"\x91" * 100_000 + b"\x00", BadMessage, "neither msgpack nor JSON"),
        (b"\xc1", BadMessage, "neither msgpack nor JSON"),
        (b"\x81\x90\x01", BadMessage, "neither msgpack nor JSON"),
        (b"\x81\x80\x01", BadMessage, "neither msgpack nor JSON"),
        (b"\x82\xa1p\x01\xa1p\x01", BadMessage, "'p' stands there twice"),
        (b'{"prompt": "a", "prompt": "b"}', BadMessage, "'prompt' stands there twice"),
        (b"\x81\xa1p\xa1\xff", BadMessage, "neither msgpack nor JSON"),
        (msgpack.packb([1]), BadMessage, "is a list, not a map"),
        (b'{"v": 2}', UnknownVersion, "version 2"),
        (b'{"v": "1"}', UnknownVersion, "version '1'"),
        (b'{"v": null}', UnknownVersion, "version None"),
        (b'{"prompt": 7}', InvalidJob, "prompt"),
        (b'{"prompt": "a", "id": "other"}', InvalidJob, "calls itself 'other'"),
        (b'{"prompt": "a", "sampling": {"top_p": 0}}', InvalidJob, r"sampling\.top_p"),
        (b'{"prompt": "a", "sampling": {"logit_bias": {"-1": 5}}}', InvalidJob, r"logit_bias\.-1"),
        (b'{"prompt": "a", "messages": []}', InvalidJob, "not both"),
        (b'{"messages": [{"role": "robot", "content": ""}]}', InvalidJob, "role"),
        (b'{"prompt": "a", "images": [7]}', InvalidJob, r"images\[0\]"),
    ],
)  # fmt: skip
def test_bad_jobs(data: bytes, kind: type[JobError], message: str) -> None:
    with pytest.raises(kind, match=message) as caught:
        wire.decode_job(data, "j1")
    assert type(caught.value) is kind
    assert "j1" in str(caught.value)
    assert not re.search(r": ($|Value error)", str(caught.value))
    assert len(str(caught.value)) < 1000


def test_error_does_not_repeat_the_input() -> None:
    with pytest.raises(InvalidJob) as caught:
        wire.decode_job(b'{"prompt": {"password": "hunter2"}}', "j1")
    assert "hunter2" not in str(caught.value)


def test_json_text_needs_no_id_and_no_version() -> None:
    job = wire.decode_job(b'{"prompt": "a", "images": ["cat.png"]}', "j1")
    assert job == Job(id="j1", prompt="a", images=[MediaRef(url="cat.png")])


def test_unknown_fields_are_kept() -> None:
    data = msgpack.packb({"prompt": "a", "colour": "red", "sampling": {"mood": 1}})
    job = wire.decode_job(data, "j1")
    again = wire.decode_job(wire.encode_job(job), "j1")
    assert again.model_extra == {"colour": "red"}
    assert again.sampling.model_extra == {"mood": 1}
    event = {"v": 1, "type": "token", "job": "j1", "text": "a", "seq": 3, "later": [1]}
    assert wire.decode_event(msgpack.packb(event)).model_extra == {"later": [1]}


def test_size_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_JOB_BYTES", 100)
    monkeypatch.setattr(wire, "MAX_EVENT_BYTES", 100)
    fits = wire.decode_job(b'{"prompt": "%s"}' % (b"x" * 86), "j1")
    assert fits.prompt == "x" * 86
    with pytest.raises(TooLarge, match="job j1 has 101 bytes; at most 100"):
        wire.decode_job(b'{"prompt": "%s"}' % (b"x" * 87), "j1")
    with pytest.raises(TooLarge, match="send media as blobs"):
        wire.encode_job(Job(id="j1", prompt="x" * 100))
    with pytest.raises(TooLarge, match="the event"):
        wire.decode_event(bytes(101))


def test_event_with_too_many_fields() -> None:
    extra = {f"x{number}": number for number in range(9)}
    with pytest.raises(BadMessage, match="at most 13 fit"):
        wire.encode_event(Token(job="j1", text="a", **extra))
