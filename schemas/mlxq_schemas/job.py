"""A job: what a producer asks for."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from mlxq_schemas.errors import EmptyPrompt, InvalidJob, Unsupported
from mlxq_schemas.keys import Priority, check_name
from mlxq_schemas.media import (
    AudioPart,
    ImagePart,
    MediaKind,
    MediaRef,
    Message,
    Model,
    Part,
    Ref,
    Tagged,
    TextPart,
    VideoPart,
)
from mlxq_schemas.numbers import Bool, Float, Int
from mlxq_schemas.plain import unwritable
from mlxq_schemas.sampling import Sampling
from mlxq_schemas.support import JOB, told, unsupported


def new_id() -> str:
    """A fresh job id: 32 hex digits."""
    return uuid.uuid4().hex


class JsonSchemaFormat(Tagged):
    type: Literal["json_schema"] = "json_schema"
    json_schema: dict[str, Any]


class RegexFormat(Tagged):
    type: Literal["regex"] = "regex"
    regex: str


class Job(Model):
    """One request to the model.

    Give ``messages`` or ``prompt`` (with ``images``, ``videos``, ``audios``, which come before
    the text). ``model`` None takes whatever the worker serves. ``not_before`` and ``deadline`` are
    unix seconds: when the job may begin, and when it ends as expired. ``timeout`` is the most
    seconds of one attempt. ``max_attempts``: after so many transient errors it has failed (None:
    the worker's setting).
    """

    v: Literal[1] = 1
    id: str = Field(default_factory=new_id)
    model: str | None = None
    messages: list[Message] | None = None
    prompt: str | None = None
    images: list[Ref] = Field(default_factory=list)
    videos: list[Ref] = Field(default_factory=list)
    audios: list[Ref] = Field(default_factory=list)
    sampling: Sampling = Field(default_factory=Sampling)
    response_format: JsonSchemaFormat | RegexFormat | None = Field(
        default=None, discriminator="type"
    )
    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    priority: Priority = "normal"
    not_before: Float | None = Field(default=None, allow_inf_nan=False)
    deadline: Float | None = Field(default=None, allow_inf_nan=False)
    timeout: Float | None = Field(default=None, gt=0, allow_inf_nan=False)
    max_attempts: Int | None = Field(default=None, ge=1)
    metadata: dict[str, Any] = Field(default_factory=dict)
    callback: str | None = None
    stream: Bool = True
    logprobs: Int | None = Field(default=None, ge=0, le=20)

    @field_validator("id")
    @classmethod
    def _id_is_a_name(cls, value: str) -> str:
        return check_name("job id", value)

    @model_validator(mode="after")
    def _one_way_to_ask(self) -> Job:
        short = self.prompt is not None or self.images or self.videos or self.audios
        if self.messages is not None and short:
            raise ValueError("give either messages or prompt/images/videos/audios, not both")
        return self

    @model_validator(mode="after")
    def _may_begin_before_it_must_end(self) -> Job:
        begin, end = self.not_before, self.deadline
        if begin is not None and end is not None and end <= begin:
            raise ValueError("deadline is not after not_before, so the job could never run")
        return self

    def chat(self) -> list[Message]:
        """The job as chat messages, whichever way it was given."""
        if self.messages is not None:
            return self.messages
        media: list[Part] = [ImagePart(image_url=ref) for ref in self.images]
        media += [VideoPart(video_url=ref) for ref in self.videos]
        media += [AudioPart(input_audio=ref) for ref in self.audios]
        text = [TextPart(text=self.prompt)] if self.prompt else []
        return [Message(role="user", content=[*media, *text])]

    def media(self) -> Iterator[tuple[MediaKind, MediaRef]]:
        """Every medium in the order in which the model sees it."""
        for message in self.chat():
            for part in message.parts():
                match part:
                    case ImagePart():
                        yield "image", part.image_url
                    case VideoPart():
                        yield "video", part.video_url
                    case AudioPart():
                        yield "audio", part.input_audio
                    case TextPart():
                        pass

    def check(self) -> Job:
        """Refuse what is empty or not honoured by this version; return the job itself.

        Raises :class:`Unsupported`, :class:`EmptyPrompt` and :class:`InvalidJob`.
        """
        if refused := list(unsupported(self)):
            raise Unsupported(f"job {self.id}: {told(refused)}")
        if self._is_empty():
            raise EmptyPrompt(f"job {self.id}: the prompt is empty; say what the model should do")
        for place, message in enumerate(self.messages or ()):
            if message.content is None or message.content == []:
                raise InvalidJob(
                    f"job {self.id}: messages[{place}].content is missing: give a text or parts"
                )
        for wrong in self._unwritable():
            raise InvalidJob(f"job {self.id}: {wrong}: leave it out, or write it as plain text")
        return self

    def _unwritable(self) -> Iterator[str]:
        for name, value in self.model_dump(exclude_defaults=True).items():
            if name != "sampling":
                yield from unwritable(value, name)
        yield from unwritable(self.sampling.stop, "sampling.stop")

    def _is_empty(self) -> bool:
        if self.messages is None:
            return not (self.prompt or "").strip()
        asked = [m for m in self.messages if m.role not in {"system", "developer"}]
        texts = (p.text for m in asked for p in m.parts() if isinstance(p, TextPart))
        return not any(self.media()) and not any(text.strip() for text in texts)

    def digest(self) -> str:
        """Hex sha256 of the job without its id; equal digests ask for the same work."""
        spec = self.model_dump(mode="json", exclude={"id"}, exclude_defaults=True)
        return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()


UNSUPPORTED_FIELDS = tuple(
    name for name in Job.model_fields if name not in JOB and name not in {"videos", "audios"}
)
"""Fields of the wire format that this version refuses rather than ignores, beside media."""
