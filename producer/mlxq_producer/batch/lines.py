"""The lines of a batch file, one at a time: requests, and what is none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, cast

from mlxq_producer.batch.seen import Seen
from mlxq_schemas.errors import ConfigError
from mlxq_schemas.near import did_you_mean
from mlxq_schemas.plain import read_json
from mlxq_schemas.wire import MAX_JOB_BYTES

Endpoint = Literal["/v1/chat/completions", "/v1/completions"]
ENDPOINTS: Final[tuple[Endpoint, ...]] = ("/v1/chat/completions", "/v1/completions")

MAX_CUSTOM_ID: Final = 1024
CHUNK: Final = 256
"""Lines that are sent in one go."""
CHUNK_BYTES: Final = 32 * 1024 * 1024
_FIELDS: Final = ("custom_id", "method", "url", "body")


@dataclass(frozen=True)
class Request:
    """One good line; ``number`` counts from 1, ``size`` is the line's bytes."""

    number: int
    custom_id: str
    url: Endpoint
    body: dict[str, Any]
    size: int


@dataclass(frozen=True)
class BadLine:
    """A line that will have an error row; ``custom_id`` None where the line has none to show."""

    number: int
    custom_id: str | None
    code: str
    message: str


Line = Request | BadLine


def read_lines(path: Path) -> Iterator[Line]:
    """The lines of a batch file, blank ones left out; holds one of them at a time.

    Raises :class:`ConfigError` if the file cannot be read.
    """
    seen = Seen()
    try:
        with path.open("rb") as file:
            for number, raw in _raw_lines(file):
                line = _parse(number, raw)
                if isinstance(line, Request) and not seen.add(line.custom_id):
                    yield BadLine(
                        number,
                        line.custom_id,
                        "duplicate_custom_id",
                        f"line {number}: an earlier line has this custom_id; give each its own",
                    )
                else:
                    yield line
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error


def chunks(lines: Iterator[Line]) -> Iterator[list[Line]]:
    """Lines in groups of :data:`CHUNK`, or fewer where they are long."""
    while chunk := take(lines, CHUNK):
        yield chunk


def take(lines: Iterator[Line], count: int) -> list[Line]:
    """The next ``count`` lines, or fewer where they are long or at an end."""
    chunk: list[Line] = []
    size = 0
    while len(chunk) < count and size < CHUNK_BYTES:
        line = next(lines, None)
        if line is None:
            break
        chunk.append(line)
        size += line.size if isinstance(line, Request) else 0
    return chunk


def _raw_lines(file: BinaryIO) -> Iterable[tuple[int, bytes]]:
    """Number and bytes of each line; one that is too long is cut, and its rest passed over."""
    number = 0
    while raw := file.readline(MAX_JOB_BYTES + 1):
        number += 1
        if len(raw) > MAX_JOB_BYTES:
            rest = raw
            while rest and not rest.endswith(b"\n"):
                rest = file.readline(MAX_JOB_BYTES)
        if number == 1:
            raw = raw.removeprefix(b"\xef\xbb\xbf")
        if raw.strip():
            yield number, raw


def _parse(number: int, raw: bytes) -> Line:
    if len(raw) > MAX_JOB_BYTES:
        return _bad(
            number, None, "too_large", f"more than {MAX_JOB_BYTES:,} bytes: send images as URLs"
        )
    try:
        value = read_json(raw.decode())
    except ValueError as error:
        return _bad(number, None, "invalid_json_line", f"not JSON ({error})")
    if not isinstance(value, dict):
        return _bad(number, None, "invalid_json_line", "not a JSON object")
    return _judge(number, cast("dict[str, Any]", value), len(raw))


def _judge(number: int, value: dict[str, Any], size: int) -> Line:
    """A request, if the line's own four fields are right; its body is judged later."""
    custom_id = value.get("custom_id")
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MAX_CUSTOM_ID:
        message = f"custom_id is not a text of 1 to {MAX_CUSTOM_ID} characters"
        return _bad(number, None, "invalid_custom_id", message)
    method, url, body = value.get("method"), value.get("url"), value.get("body")
    if unknown := [name for name in value if name not in _FIELDS]:
        named = ", ".join(repr(name)[:80] for name in unknown)
        meant = did_you_mean(unknown[0], _FIELDS) or "; leave it out"
        return _bad(number, custom_id, "unknown_field", f"unknown: {named}{meant}")
    if method != "POST":
        return _bad(number, custom_id, "invalid_method", "method is not POST")
    if url not in ENDPOINTS:
        return _bad(number, custom_id, "invalid_url", f"url is none of {', '.join(ENDPOINTS)}")
    if not isinstance(body, dict):
        return _bad(number, custom_id, "invalid_body", "body is not a JSON object")
    return Request(number, custom_id, url, cast("dict[str, Any]", body), size)


def _bad(number: int, custom_id: str | None, code: str, reason: str) -> BadLine:
    return BadLine(number, custom_id, code, f"line {number}: {reason}")
