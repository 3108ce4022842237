"""Bytes on the wire: msgpack maps with a version, and size limits.

A job may also be written as JSON text, so that a shell can make one: a JSON object begins with
``{``, which no msgpack map does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import msgpack
from pydantic import ValidationError

from mlxq_schemas.errors import BadMessage, InvalidJob, TooLarge, UnknownVersion, Unsupported
from mlxq_schemas.events import UNSENT, BaseEvent, Event, Result, event_adapter
from mlxq_schemas.job import Job
from mlxq_schemas.plain import each_once, read_json
from mlxq_schemas.wording import describe

VERSION: Final = 1
MAX_JOB_BYTES: Final = 32 * 1024 * 1024
"""Largest encoded job; larger media belong in blobs, files or URLs."""
MAX_EVENT_BYTES: Final = 16 * 1024 * 1024
MAX_EVENT_FIELDS: Final = 13
"""The server adds ``t`` and ``seq`` to an event by rewriting its one-byte map header (15 fields at
most)."""


def pack(value: dict[str, Any]) -> bytes:
    """Msgpack bytes of a map of plain values."""
    return cast("bytes", msgpack.packb(value, use_bin_type=True))


def unpack(
    data: bytes,
    what: str,
    limit: int,
    pairs: Callable[[Sequence[tuple[Any, Any]]], dict[Any, Any]] | None = None,
) -> dict[str, Any]:
    """The map in ``data`` (msgpack, or JSON text), its version checked.

    ``what`` names the input in errors; ``pairs`` makes maps. Raises :class:`TooLarge`,
    :class:`BadMessage`, :class:`UnknownVersion`.
    """
    if len(data) > limit:
        raise TooLarge(f"{what} has {len(data):,} bytes; at most {limit:,} are allowed")
    try:
        if data[:1] == b"{":
            value = read_json(data)
        else:
            value = msgpack.unpackb(data, raw=False, strict_map_key=False, object_pairs_hook=pairs)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        # A TypeError is a list or map in the place of a field's name.
        raise BadMessage(
            f"{what} is neither msgpack nor JSON: {str(error) or type(error).__name__}"
        ) from error
    if not isinstance(value, dict):
        raise BadMessage(f"{what} is a {type(value).__name__}, not a map of fields")
    version = value.get("v", VERSION)
    if version != VERSION:
        raise UnknownVersion(
            f"{what} has version {version!r}; this mlxq reads version {VERSION}: upgrade it"
        )
    return value


def encode_job(job: Job) -> bytes:
    """Msgpack bytes of a job; raises :class:`TooLarge`."""
    data = pack({"v": VERSION, "id": job.id, **job.model_dump(mode="json", exclude_defaults=True)})
    if len(data) > MAX_JOB_BYTES:
        raise TooLarge(
            f"job {job.id} has {len(data):,} bytes; at most {MAX_JOB_BYTES:,} are allowed: "
            "send media as blobs, files or URLs"
        )
    return data


def decode_job(data: bytes, job_id: str | None = None) -> Job:
    """The job in ``data``. ``job_id`` is the id it was queued under, where known.

    Raises :class:`TooLarge`, :class:`BadMessage`, :class:`UnknownVersion`, :class:`InvalidJob`.
    """
    what = f"job {job_id}" if job_id else "the job"
    value = unpack(data, what, MAX_JOB_BYTES, each_once)
    if job_id is not None and value.setdefault("id", job_id) != job_id:
        raise InvalidJob(f"{what} calls itself {value['id']!r}; both ids must be the same")
    return parse_job(value)


def parse_job(value: dict[str, Any]) -> Job:
    """A job from a map of fields; raises :class:`InvalidJob` naming each wrong field.

    A response format of any shape is :class:`Unsupported`.
    """
    try:
        return Job.model_validate(value)
    except ValidationError as error:
        what = f"job {value['id']}" if value.get("id") else "the job"
        if all(item["loc"][:1] == ("response_format",) for item in error.errors()):
            raise Unsupported(
                f"{what}: not supported by this version: response_format; leave it out"
            ) from error
        raise InvalidJob(f"{what}: {describe(error, value)}") from error


def encode_event(event: BaseEvent) -> bytes:
    """Msgpack bytes of an event or result; of one that was not sent yet without ``t`` and ``seq``,
    which are the server's to give.
    """
    fields = event.model_dump(mode="json", exclude_none=True)
    if fields.get("seq") == UNSENT:
        del fields["seq"], fields["t"]
    if len(fields) > MAX_EVENT_FIELDS:
        raise BadMessage(
            f"an event of job {event.job} has {len(fields)} fields; at most {MAX_EVENT_FIELDS} fit"
        )
    return pack(fields)


def decode_event(data: bytes) -> Event:
    """The event in ``data``; raises :class:`BadMessage` or :class:`UnknownVersion`."""
    value = unpack(data, "the event", MAX_EVENT_BYTES)
    try:
        return event_adapter.validate_python(value)
    except ValidationError as error:
        raise BadMessage(f"not an event: {describe(error, value)}") from error


def decode_result(data: bytes) -> Result:
    """The stored result in ``data``; raises :class:`BadMessage` or :class:`UnknownVersion`."""
    value = unpack(data, "the result", MAX_EVENT_BYTES)
    try:
        return Result.model_validate(value)
    except ValidationError as error:
        raise BadMessage(f"not a result: {describe(error, value)}") from error
