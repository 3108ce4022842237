"""What a job may ask, what this version refuses, and which jobs are the same."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from mlxq_schemas import ImagePart, Job, Message, Sampling, TextPart, new_id
from mlxq_schemas.errors import EmptyPrompt, InvalidJob, Unsupported
from mlxq_schemas.job import UNSUPPORTED_FIELDS

VALUES: dict[str, Any] = {
    "response_format": {"type": "regex", "regex": "a+"},
    "tools": [],
    "callback": "https://example.com/",
}


def test_ids_are_fresh_names() -> None:
    assert len({Job(prompt="a").id for _ in range(100)}) == 100
    assert len(new_id()) == 32


@pytest.mark.parametrize("field", UNSUPPORTED_FIELDS)
def test_field_not_honoured_is_refused(field: str) -> None:
    with pytest.raises(Unsupported, match=field):
        Job.model_validate({"prompt": "a", field: VALUES[field]}).check()


@pytest.mark.parametrize("field", ["videos", "audios"])
def test_media_not_honoured_are_refused(field: str) -> None:
    with pytest.raises(Unsupported, match=field.removesuffix("s")):
        Job.model_validate({"prompt": "a", field: ["x"]}).check()


@pytest.mark.parametrize(
    ("fields", "name"), [({"colour": 1}, "colour"), ({"sampling": {"mood": 1}}, r"sampling\.mood")]
)
def test_unknown_field_is_refused(fields: dict[str, Any], name: str) -> None:
    with pytest.raises(Unsupported, match=name):
        Job.model_validate({"prompt": "a", **fields}).check()


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"prompt": ""},
        {"prompt": " \n"},
        {"messages": []},
        {"messages": [{"role": "user", "content": " "}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}]}]},
    ],
)
def test_empty_prompt(fields: dict[str, Any]) -> None:
    with pytest.raises(EmptyPrompt, match="is empty"):
        Job.model_validate(fields).check()


def test_short_form_is_one_chat_turn_with_media_first() -> None:
    job = Job.model_validate({"prompt": "what?", "images": ["a.png", "b.png"]})
    [message] = job.chat()
    assert [type(part) for part in message.parts()] == [ImagePart, ImagePart, TextPart]
    assert [(kind, ref.url) for kind, ref in job.media()] == [
        ("image", "a.png"),
        ("image", "b.png"),
    ]
    assert job.check() is job


def test_messages_are_taken_as_they_are() -> None:
    job = Job(messages=[Message(role="user", content="hello")])
    assert job.chat() == job.messages
    assert job.chat()[0].parts() == [TextPart(text="hello")]


@pytest.mark.parametrize("job_id", ["", "-a", "a b", "a\n", "ä", "a/b", "{a}", "x" * 129])
def test_ids_that_are_no_names(job_id: str) -> None:
    with pytest.raises((ValidationError, InvalidJob)):
        Job(id=job_id, prompt="a")


def test_digest_is_that_of_the_work() -> None:
    same = {Job(prompt="a").digest(), Job(id="x", prompt="a", sampling=Sampling()).digest()}
    assert len(same) == 1
    others = [
        Job(prompt="b"),
        Job(prompt="a", priority="high"),
        Job(prompt="a", sampling=Sampling(seed=1)),
        Job.model_validate({"prompt": "a", "images": ["x"]}),
        Job.model_validate({"prompt": "a", "colour": "red"}),
    ]
    assert len({job.digest() for job in others} | same) == 6


def test_jobs_are_immutable() -> None:
    with pytest.raises(ValidationError):
        Job(prompt="a").prompt = "b"  # type: ignore[misc]


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": -1},
        {"temperature": float("nan")},
        {"temperature": -0.1},
        {"top_p": 0},
        {"top_p": 1.1},
        {"min_p": float("nan")},
        {"presence_penalty": float("nan")},
        {"repetition_penalty": 0},
        {"repetition_penalty": float("inf")},
        {"seed": -1},
        {"seed": 2**63},
        {"stop": [""]},
        {"stop": ["a"] * 17},
        {"logit_bias": {1: float("nan")}},
        {"logit_bias": {1: 101}},
    ],
)
def test_sampling_out_of_range(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Sampling(**fields)


def test_one_stop_string_is_a_list_of_one() -> None:
    assert Sampling.model_validate({"stop": "END"}).stop == ["END"]


@pytest.mark.parametrize(
    "fields",
    [
        {"deadline": 5.0, "not_before": 5.0},
        {"deadline": float("nan")},
        {"not_before": float("inf")},
        {"timeout": 0},
        {"timeout": float("inf")},
        {"max_attempts": 0},
    ],
)
def test_times_and_attempts_out_of_range(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Job.model_validate({"prompt": "a", **fields})


def test_times_and_attempts_are_honoured() -> None:
    fields = {"not_before": 1.0, "deadline": 2.0, "timeout": 0.5, "max_attempts": 1}
    assert Job.model_validate({"prompt": "a", **fields}).check()
