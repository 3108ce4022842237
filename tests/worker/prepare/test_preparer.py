"""From jobs to requests with the model from the package: what is refused, and how early."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from PIL import Image

from mlxq_schemas import Job
from mlxq_schemas.errors import InvalidJob, JobError, MediaError, PromptTooLong, Unsupported
from mlxq_worker.models.load import load_model
from mlxq_worker.prepare.media import MediaPolicy
from mlxq_worker.prepare.preparer import Preparer

CONTEXT = 64


class Tokens:
    """A tokenizer that keeps the lengths of the texts it was given."""

    def __init__(self, tokenizer: Any) -> None:
        self.lengths: list[int] = []
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> Any:
        self.lengths.append(len(text))
        return self._tokenizer(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


@pytest.fixture(scope="module")
def processor() -> Any:
    return load_model().processor


def refused(processor: Any, policy: MediaPolicy, **fields: Any) -> JobError:
    with pytest.raises(JobError) as caught:
        Preparer(processor, policy, CONTEXT)(Job.model_validate({"id": "j1", **fields}), NO_BLOB)
    assert "j1" in caught.value.message
    return caught.value


def NO_BLOB(_: str) -> bytes | None:  # noqa: N802 - a constant that is called
    raise AssertionError


def test_a_text_far_too_long_is_not_read_to_its_end(processor, monkeypatch):
    tokens = Tokens(processor.tokenizer)
    monkeypatch.setattr(processor, "tokenizer", tokens)
    error = refused(processor, MediaPolicy(), prompt="a" * 100_000)
    assert type(error) is PromptTooLong
    assert sum(tokens.lengths) < 1000


def test_a_long_text_of_few_tokens_is_a_prompt(processor):
    """Its beginning does not fill the context, so that only the whole can tell."""
    prompt = " background" * (CONTEXT - 20)
    assert len(prompt) > CONTEXT * 7
    request = Preparer(processor, MediaPolicy(), CONTEXT)(Job(id="j1", prompt=prompt), NO_BLOB)
    assert request.prepared is not None
    assert len(request.prepared.ids) < CONTEXT


@pytest.mark.parametrize("size", [(4000, 5), (5, 4000)])
def test_an_image_too_thin_for_the_model_is_a_media_error(processor, tmp_path, size):
    Image.new("RGB", size, "red").save(tmp_path / "thin.png")
    error = refused(
        processor, MediaPolicy(roots=(tmp_path,)), prompt="Describe it.", images=["thin.png"]
    )
    assert type(error) is MediaError
    assert "aspect ratio" in error.message


def test_a_job_may_not_bring_its_own_template(processor):
    endless = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    error = refused(
        processor, MediaPolicy(), prompt="x", chat_template_kwargs={"chat_template": endless}
    )
    assert type(error) is Unsupported


@pytest.mark.parametrize("name", ["tokenize", "add_generation_prompt", "max_length", "tools"])
def test_an_argument_of_ours_is_none_of_the_template(processor, name):
    error = refused(processor, MediaPolicy(), prompt="x", chat_template_kwargs={name: 1})
    assert type(error) is Unsupported
    assert f"chat_template_kwargs.{name}" in error.message


def test_every_field_of_the_messages_is_in_the_prompt(processor, tmp_path):
    """Roles, texts, parts and their order, and the picture's own bytes."""
    Image.new("RGB", (64, 64), "red").save(tmp_path / "a.png")
    parts = [
        {"type": "text", "text": "before"},
        {"type": "image_url", "image_url": "a.png"},
        {"type": "text", "text": "after"},
    ]
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "hi"},
        {"role": "user", "content": parts},
    ]
    policy = MediaPolicy(roots=(tmp_path,))
    job = Job.model_validate({"messages": messages}).check()
    request = Preparer(processor, policy, 1000)(job, NO_BLOB)
    assert request.prepared is not None
    digest = hashlib.sha256((tmp_path / "a.png").read_bytes()).hexdigest()
    assert request.prepared.media == (digest,)
    text = processor.tokenizer.decode(request.prepared.ids)
    words = ["system", "be brief", "user", "hello", "assistant", "hi", "user", "before", "after"]
    places = [text.index(words[0])]
    for word in words[1:]:
        places.append(text.index(word, places[-1] + 1))
    assert "vision" in text[places[-2] : places[-1]]


def test_a_bias_for_a_token_that_the_model_lacks_is_named(processor):
    """Before anything is fetched or read."""
    prepare = Preparer(processor, MediaPolicy(), CONTEXT, vocabulary=1024)
    fields = {"id": "j1", "prompt": "a", "images": ["/no/such/file.png"]}
    for wrong in (1024, 5_000_000_000):
        job = Job.model_validate({**fields, "sampling": {"logit_bias": {3: 1.0, wrong: 2.0}}})
        with pytest.raises(InvalidJob, match=f"j1: logit_bias has the token id {wrong}") as caught:
            prepare(job, NO_BLOB)
        assert caught.value.code == "invalid_job"
    job = Job.model_validate({"id": "j1", "prompt": "a", "sampling": {"logit_bias": {1023: 1.0}}})
    assert prepare(job, NO_BLOB).sampling.logit_bias == {1023: 1.0}


def test_a_tokenizer_with_more_tokens_than_the_model_is_named(processor):
    job = Job.model_validate({"id": "j1", "prompt": "fox cat"})
    with pytest.raises(InvalidJob, match="j1: the prompt has the token id"):
        Preparer(processor, MediaPolicy(), CONTEXT, vocabulary=5)(job, NO_BLOB)
