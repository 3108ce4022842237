"""Content parts of a chat message, in OpenAI's form."""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
)

MediaKind = Literal["image", "video", "audio"]


class Model(BaseModel):
    """Base of everything that travels: immutable; unknown fields are kept."""

    model_config = ConfigDict(frozen=True, extra="allow")


class Tagged(Model):
    """Base of what is told apart by ``type``: the tag travels also where defaults are left out."""

    @model_serializer(mode="wrap")
    def _with_type(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {"type": type(self).model_fields["type"].default, **serialize(self)}


class LoadError(Model):
    """Why a producer could not read a local medium; the worker fails the job with it."""

    code: str
    message: str


class MediaRef(Model):
    """Where a medium's bytes are.

    ``url`` is one of: ``http(s)://…``; ``data:image/png;base64,…``; ``blob:<sha256>`` (bytes
    under ``Q:blob:<sha256>``); ``file:///…`` or a plain path, under one of the worker's roots.
    ``name`` is how messages call it; a blob or data: URI says nothing to a reader. ``detail`` is
    OpenAI's; this version takes ``auto`` alone.
    """

    url: str = Field(min_length=1)
    name: str | None = None
    error: LoadError | None = None
    detail: str | None = None


def _as_ref(value: Any) -> Any:
    return {"url": value} if isinstance(value, str) else value


Ref = Annotated[MediaRef, BeforeValidator(_as_ref)]
"""A :class:`MediaRef`, or a plain string that stands for its ``url``."""


def _as_audio(value: Any) -> Any:
    """OpenAI's form has the bytes in base64, and their format, beside each other."""
    if isinstance(value, dict) and {"data", "format"} <= value.keys() and "url" not in value:
        fields = cast("dict[str, Any]", value)
        rest = {name: one for name, one in fields.items() if name not in {"data", "format"}}
        return {**rest, "url": f"data:audio/{fields['format']};base64,{fields['data']}"}
    return _as_ref(value)


class TextPart(Tagged):
    type: Literal["text"] = "text"
    text: str


class ImagePart(Tagged):
    type: Literal["image_url"] = "image_url"
    image_url: Ref


class VideoPart(Tagged):
    type: Literal["video_url"] = "video_url"
    video_url: Ref


class AudioPart(Tagged):
    type: Literal["input_audio"] = "input_audio"
    input_audio: Annotated[MediaRef, BeforeValidator(_as_audio)]


Part = Annotated[TextPart | ImagePart | VideoPart | AudioPart, Field(discriminator="type")]


class Message(Model):
    """One chat turn; ``content`` is text or a list of parts.

    OpenAI's turns that call tools have none; :meth:`Job.check` says what this version takes.
    """

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part] | None = None

    def parts(self) -> list[Part]:
        """The content as parts, also where it was given as plain text."""
        if isinstance(self.content, str):
            return [TextPart(text=self.content)]
        return self.content or []
