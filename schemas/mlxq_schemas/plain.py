"""Values that any reader can take: whole text, and strict JSON.

Python holds text that is none (half a surrogate pair, as in a file name that is not UTF-8, or in
JSON's ``"\\ud83d"``) and writes numbers that JSON lacks (NaN, infinities). Neither leaves us.
"""

from __future__ import annotations

import datetime
import decimal
import json
import math
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any, Final, cast

_HALF: Final = re.compile("[\ud800-\udfff]")
_LINE_ENDS: Final = re.compile("[\x80-\x9f\u2028\u2029]")
"""Characters that JSON allows in a string, and that readers of lines or terminals stumble over."""
_MAX_INT: Final = 2**64 - 1
_MIN_INT: Final = -(2**63)


def whole(text: str) -> str:
    """``text`` with each half of a surrogate pair spelled out: ``\\ud83d``, or ``\\xff`` for a byte
    of a name that is not UTF-8.
    """
    return text if is_whole(text) else _HALF.sub(_spelled, text)


def is_whole(text: str) -> bool:
    """True if ``text`` can be written as UTF-8."""
    return text.isascii() or _HALF.search(text) is None


def _spelled(found: re.Match[str]) -> str:
    code = ord(found[0])
    # As os.fsdecode() gives the bytes 0x80 to 0xff.
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:04x}"


def plain(value: Any) -> Any:
    """The value as JSON has it: NaN and infinities are null, text is :func:`whole`, times are ISO
    8601, decimals, paths and UUIDs are text.

    Raises :class:`TypeError` for what JSON cannot express, bytes among it.
    """
    match value:
        case None | bool() | int():
            return value
        case str():
            return whole(value)
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            items = cast("Mapping[Any, Any]", value).items()
            return {_key(name): plain(one) for name, one in items}
        case list() | tuple() | set() | frozenset():
            return [plain(one) for one in cast("Sequence[Any]", value)]
        case datetime.datetime() | datetime.date() | datetime.time():
            return value.isoformat()
        case decimal.Decimal() | datetime.timedelta() | uuid.UUID() | PurePath():
            return whole(str(value))
        case _:
            raise TypeError(f"a {type(value).__name__} cannot be written as JSON")


def _key(name: Any) -> str:
    found = plain(name)
    if isinstance(found, str):
        return found
    if isinstance(found, list | dict):
        raise TypeError("a name in a map is not a text")
    return json.dumps(found)


def to_json(value: Any, *, indent: int | None = None) -> str:
    """Strict JSON of a value, after :func:`plain`.

    On one line (without ``indent``) for any reader of lines: U+0085, U+2028 and U+2029 are escaped
    too.
    """
    text = json.dumps(plain(value), ensure_ascii=False, allow_nan=False, indent=indent)
    return text if text.isascii() else _LINE_ENDS.sub(lambda c: f"\\u{ord(c[0]):04x}", text)


def unwritable(value: Any, path: str) -> Iterator[str]:
    """Where a value holds what would arrive as something else, and what that is."""
    match value:
        case str() if not is_whole(value):
            yield f"{whole(path)} holds half a surrogate pair, which is no text"
        case float() if not math.isfinite(value):
            yield f"{whole(path)} is {value}, which JSON lacks"
        case int() if not _MIN_INT <= value <= _MAX_INT:
            yield f"{whole(path)} is a number of more than 64 bits"
        case Mapping():
            for name, one in cast("Mapping[Any, Any]", value).items():
                if not isinstance(name, str):
                    yield f"{whole(path)} has a name that is no text: {str(name)[:40]}"
                elif not is_whole(name):
                    yield f"{whole(path)} has a name that holds half a surrogate pair"
                else:
                    yield from unwritable(one, f"{path}.{name}" if path else name)
        case list() | tuple():
            for place, one in enumerate(cast("Sequence[Any]", value)):
                yield from unwritable(one, f"{path}[{place}]")
        case _:
            return


def read_json(data: str | bytes) -> Any:
    """What a JSON text says. Raises :class:`ValueError`, also for a name that stands twice in one
    map (a reader would drop one of the two), and for nesting without end.
    """
    try:
        return json.loads(data, object_pairs_hook=each_once)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def each_once(pairs: Sequence[tuple[Any, Any]]) -> dict[Any, Any]:
    """A map of its pairs. Raises :class:`ValueError` if a name stands there twice."""
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{whole(str(twice))[:80]!r} stands there twice")
    return found
