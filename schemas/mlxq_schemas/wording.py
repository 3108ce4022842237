"""What pydantic finds wrong, in our words: where, what was given, and what is allowed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, cast

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from mlxq_schemas.near import did_you_mean
from mlxq_schemas.plain import whole

_SHOWN: Final = 40
"""Characters of a value that a message repeats."""
_SECRET: Final = frozenset({"redis_url", "url"})
"""Fields whose values may hold a password, a signed link or a picture."""

_QUOTE: Final = "'"
_MEMBERS: Final = frozenset({"str", "bool", "int", "float"})
"""How pydantic calls the scalars of a union."""
_NUMBER, _WHOLE, _TEXT = "must be a number", "must be a whole number", "must be a text"
_SWITCH, _LIST, _MAP = "must be true or false", "must be a list", "must be a map of fields"
WORDS: Final[dict[str, str]] = {
    "bool_parsing": _SWITCH,
    "bool_type": _SWITCH,
    "dict_type": _MAP,
    "finite_number": "must be a finite number",
    "float_parsing": _NUMBER,
    "float_type": _NUMBER,
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "int_from_float": _WHOLE,
    "int_parsing": _WHOLE,
    "int_parsing_size": _WHOLE + " of fewer digits",
    "int_type": _WHOLE,
    "invalid_key": "has a name that is no text",
    "is_instance_of": "must be a {class}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "list_type": _LIST,
    "mapping_type": _MAP,
    "model_attributes_type": _MAP,
    "model_type": _MAP,
    "path_type": "must be a path",
    "recursion_loop": "holds itself",
    "string_type": _TEXT,
    "too_long": "must have at most {max_length} entries",
    "too_short": "must have at least {min_length} entries",
    "tuple_type": _LIST,
}
"""By pydantic's type of error; those that need more than its figures have a line in ``_words``."""
SAID_OTHERWISE: Final = frozenset(
    {
        *("assertion_error", "enum", "extra_forbidden", "literal_error", "missing"),
        *("string_too_short", "string_too_long", "string_unicode"),
        *("union_tag_invalid", "union_tag_not_found", "value_error"),
    }
)


def describe(
    error: ValidationError,
    given: object,
    known: Iterable[str] = (),
    name: Callable[[str], str] = str,
    show: Callable[[object], str] | None = None,
) -> str:
    """One line: each wrong field, its value where it is short and no secret, what is allowed.

    ``given`` is what was to be read; ``known`` are the names that a field may have, for one that is
    unknown; ``name`` says how the user calls a field, by its path (``images[1].url``), and ``show``
    how the value stood there (as JSON).
    """
    details = error.errors(include_url=False)
    wrongs: dict[str, list[str]] = {}
    for one in details:
        if not _outdone(one, details):
            subject, reason = _wrong(_path(one, given), one, known, name, show or _value)
            wrongs.setdefault(subject, []).append(reason)
    told = (subject + _either(reasons) for subject, reasons in wrongs.items())
    return whole("; ".join(told))


def _either(reasons: Iterable[str]) -> str:
    first, *others = dict.fromkeys(reasons)
    return " or ".join([first, *(one.removeprefix("must be ") for one in others)])


def words(detail: ErrorDetails) -> str:
    """What is allowed instead of the value that one error is about."""
    context: dict[str, Any] = detail.get("ctx", {})
    match detail["type"]:
        case "value_error" | "assertion_error":
            return str(context["error"])
        case "literal_error" | "enum":
            return f"must be {context['expected'].replace(_QUOTE, '')}"
        case "string_unicode":
            return "holds half a surrogate pair, which is no text"
        case "string_too_short" if context["min_length"] == 1:
            return "must not be empty"
        case "string_too_short" | "string_too_long" as kind:
            few = kind == "string_too_short"
            bound = context["min_length" if few else "max_length"]
            return f"must have at {'least' if few else 'most'} {bound} characters"
        case kind if kind in WORDS:
            figures = {k: _figure(v) for k, v in context.items()}
            return WORDS[kind].format_map(figures)
        case _:
            return "is not valid"


def _wrong(
    path: str,
    detail: ErrorDetails,
    known: Iterable[str],
    name: Callable[[str], str],
    show: Callable[[object], str],
) -> tuple[str, str]:
    """The subject of a sentence, with what parts it from the rest, and the rest."""
    context: dict[str, Any] = detail.get("ctx", {})
    where = name(path) if path else ""
    match detail["type"]:
        case "missing":
            return where, " is missing"
        case "extra_forbidden":
            return where, f" is unknown{did_you_mean(path, known)}"
        case "union_tag_not_found":
            return where, f".{context['discriminator'].replace(_QUOTE, '')} is missing"
        case "union_tag_invalid":
            tags = context["expected_tags"].replace(_QUOTE, "")
            tag = _value(context["tag"])
            return f"{where}: ", f"unknown {_kind(path)}type {tag}: {tags} are known"
        case "value_error" | "assertion_error":
            return f"{where}: " if where else "", words(detail)
        case "string_unicode":
            return f"{where or 'the name of a field'}: ", words(detail)
        case _:
            secret = path.rpartition(".")[2] in _SECRET
            value = "" if secret else show(detail["input"])
            return " ".join(part for part in (where, value) if part) + ": ", words(detail)


def _kind(path: str) -> str:
    return "part " if path.rpartition(".")[2].startswith("content[") else ""


def _path(detail: ErrorDetails, given: object) -> str:
    """Where, as one would write it: names of union members, which pydantic puts in, left out."""
    path, here = "", given
    last = len(detail["loc"]) - 1
    for place, step in enumerate(detail["loc"]):
        if isinstance(here, Mapping) and (step in here or str(step) in here):
            fields = cast("Mapping[Any, Any]", here)
            here = fields[step] if step in fields else fields[str(step)]
            path = f"{path}.{step}" if path else str(step)
        elif isinstance(step, int) and isinstance(here, list | tuple):
            here = cast("Sequence[Any]", here)[step]
            path += f"[{step}]"
        elif place == last and detail["type"] == "missing":
            path = f"{path}.{step}" if path else str(step)
    return path


def _outdone(detail: ErrorDetails, others: Iterable[ErrorDetails]) -> bool:
    """True for the member of a union that the value was not meant for: another one got further."""
    place = detail["loc"]
    if not place or place[-1] not in _MEMBERS:
        return False
    depth, base = len(place), place[:-1]
    return any(len(one["loc"]) > depth and one["loc"][: depth - 1] == base for one in others)


def _value(value: object) -> str:
    """A value as a message shows it: short, and none of what it holds if it is no scalar."""
    match value:
        case None | bool() | int() | float():
            text = json.dumps(value)
        case str():
            cut = value if len(value) <= _SHOWN else value[: _SHOWN - 1] + "…"
            text = json.dumps(cut, ensure_ascii=False)
        case Mapping():
            text = "(a map)"
        case list() | tuple():
            text = "(a list)"
        case _:
            text = f"({type(value).__name__})"
    return text if len(text) <= 2 * _SHOWN else text[:_SHOWN] + "…"


def _figure(value: object) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return f"{value:,}" if isinstance(value, int) else str(value)
