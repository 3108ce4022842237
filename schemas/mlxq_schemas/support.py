"""What this version honours of a job. Every other field is refused by its name, never ignored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from mlxq_schemas.media import (
    AudioPart,
    ImagePart,
    LoadError,
    MediaRef,
    Message,
    Model,
    TextPart,
    VideoPart,
)
from mlxq_schemas.sampling import Sampling

JOB: Final = frozenset(
    {
        *("v", "id", "model", "messages", "prompt", "images", "sampling", "chat_template_kwargs"),
        *("priority", "not_before", "deadline", "timeout", "max_attempts", "metadata"),
        *("stream", "logprobs"),
    }
)
HONOURED: Final[Mapping[type[Model], frozenset[str]]] = {
    Message: frozenset({"role", "content"}),
    TextPart: frozenset({"type", "text"}),
    ImagePart: frozenset({"type", "image_url"}),
    VideoPart: frozenset({"type"}),
    AudioPart: frozenset({"type"}),
    MediaRef: frozenset({"url", "name", "error", "detail"}),
    LoadError: frozenset({"code", "message"}),
    Sampling: frozenset(Sampling.model_fields),
}
"""Fields that have their effect; those of a job itself are in :data:`JOB`."""


def unsupported(model: Model, path: str = "") -> Iterator[str]:
    """The paths of the fields that were given and that this version does not honour."""
    honoured = HONOURED.get(type(model), JOB)
    for name, value in model:
        where = f"{path}.{name}" if path else name
        if not _is_given(model, name, value):
            continue
        if name not in honoured:
            yield where
        elif _has_no_effect(model, name, value):
            yield f"{where} ({str(value)[:40]})"
        elif isinstance(value, Model):
            yield from unsupported(value, where)
        elif isinstance(value, list):
            for place, one in enumerate(cast("list[Any]", value)):
                if isinstance(one, Model):
                    yield from unsupported(one, f"{where}[{place}]")


def _has_no_effect(model: Model, name: str, value: Any) -> bool:
    """True for values that only a later version honours, of fields that have others."""
    match model:
        case MediaRef():
            return name == "detail" and value != "auto"
        case Message():
            return name == "role" and value == "tool"
        case _:
            return False


def _is_given(model: Model, name: str, value: Any) -> bool:
    """False for what says nothing: null, and a default that only a model holds, like ``[]``."""
    if value is None:
        return False
    field = type(model).model_fields.get(name)
    if field is None or field.is_required():
        return True
    return value != field.get_default(call_default_factory=True)
