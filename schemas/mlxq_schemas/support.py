"""What this version honours of a job. Every other field is refused by its name, never ignored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
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
from mlxq_schemas.near import near
from mlxq_schemas.plain import whole
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


_NAMED: Final = 20
"""Fields that a message names, of at most so many characters each:"""
_NAME_LENGTH: Final = 200


@dataclass(frozen=True)
class Refusal:
    """A field that was given and is not honoured, by its path; ``meant``: a field that is, and
    whose name is nearly the same.
    """

    path: str
    meant: str | None = None


def refusal(path: str, known: Iterable[str]) -> Refusal:
    """A field that nobody knows; its place has fields of the ``known`` names."""
    parent, _, name = path.rpartition(".")
    meant = near(name, known)
    return Refusal(path, meant and (f"{parent}.{meant}" if parent else meant))


def told(refusals: Iterable[Refusal]) -> str:
    """What a message says of fields that are not honoured."""
    refused = list(dict.fromkeys(refusals))[:_NAMED]
    slips = [
        f"{whole(one.path)[:_NAME_LENGTH]} is unknown: did you mean {one.meant}?"
        for one in refused
        if one.meant is not None
    ]
    rest = ", ".join(whole(one.path)[:_NAME_LENGTH] for one in refused if one.meant is None)
    if rest:
        slips.append(f"not supported by this version: {rest}; leave these out")
    return " ".join(slips)


def unsupported(model: Model, path: str = "") -> Iterator[Refusal]:
    """The fields that were given and that this version does not honour."""
    honoured = HONOURED.get(type(model), JOB)
    for name, value in model:
        where = f"{path}.{name}" if path else name
        if not _is_given(model, name, value):
            continue
        if name not in honoured:
            declared = name in type(model).model_fields
            yield Refusal(where) if declared else _unknown(where, name, honoured, path)
        elif _has_no_effect(model, name, value):
            yield Refusal(f"{where} ({str(value)[:40]})")
        elif isinstance(value, Model):
            yield from unsupported(value, where)
        elif isinstance(value, list):
            for place, one in enumerate(cast("list[Any]", value)):
                if isinstance(one, Model):
                    yield from unsupported(one, f"{where}[{place}]")


def _unknown(where: str, name: str, honoured: Iterable[str], path: str) -> Refusal:
    """A slip of the hand; of a job, also in the name of a sampling field."""
    found = refusal(where, honoured)
    if found.meant is None and not path and (meant := near(name, Sampling.model_fields)):
        return Refusal(where, f"sampling.{meant}")
    return found


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
