"""A job as a user writes it becomes what is sent: checked, encoded, its media gathered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError

from mlxq_producer.media import MediaCollector
from mlxq_schemas import Job, Sampling
from mlxq_schemas.errors import InvalidJob
from mlxq_schemas.wire import encode_job, parse_job

JobLike = Job | Mapping[str, Any]
"""A job, or its fields; fields of :class:`Sampling` may stand among them."""

_MEDIA_FIELDS = ("images", "videos", "audios")
_PART_FIELDS = ("image_url", "video_url", "input_audio")


@dataclass(frozen=True)
class Submission:
    """One job ready to be sent."""

    job: Job
    spec: bytes
    digest: str
    blobs: dict[str, bytes]


def prepare(job: JobLike, *, inline_media: bool) -> Submission:
    """Check and encode a job, reading its local media.

    Raises a :class:`~mlxq_schemas.errors.JobError` for what no worker could do.
    """
    fields = _fields(job)
    media = MediaCollector(inline=inline_media)
    for name in _MEDIA_FIELDS:
        if isinstance(fields.get(name), list | tuple):
            fields[name] = [media.reference(value) for value in fields[name]]
    if isinstance(fields.get("messages"), list | tuple):
        fields["messages"] = [_message(message, media) for message in fields["messages"]]
    parsed = parse_job(fields).check()
    try:
        return Submission(parsed, encode_job(parsed), parsed.digest(), media.blobs)
    except (
        *(PydanticSerializationError, TypeError, ValueError),
        *(OverflowError, RecursionError),
    ) as error:
        raise InvalidJob(
            f"job {parsed.id}: a field holds what JSON cannot express ({error}): "
            "use text, numbers, lists and maps"
        ) from error


def _fields(job: JobLike) -> dict[str, Any]:
    """A job's fields as one flat map can be checked: sampling fields in their place."""
    if isinstance(job, Job):
        return {**job.model_dump(exclude_defaults=True), "id": job.id}
    if not isinstance(job, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidJob(f"a job is a {type(job).__name__}; give a Job or a map of its fields")
    fields = {str(name): value for name, value in job.items() if value is not None}
    direct = {name: fields.pop(name) for name in Sampling.model_fields if name in fields}
    if direct:
        given = fields.get("sampling", {})
        if isinstance(given, Sampling):
            given = given.model_dump(exclude_defaults=True)
        if not isinstance(given, Mapping):
            raise InvalidJob(f"sampling is a {type(given).__name__}; give a map of its fields")
        if twice := [name for name in direct if name in given and given[name] != direct[name]]:
            raise InvalidJob(
                f"{', '.join(twice)} in sampling and beside it differ: give each of them once"
            )
        fields["sampling"] = {**given, **direct}
    return fields


def _message(message: object, media: MediaCollector) -> object:
    """A chat message with references in its parts; what is none goes through to be judged."""
    message = _plain(message)
    if not isinstance(message, Mapping):
        return message
    fields = cast("Mapping[str, object]", message)
    content = fields.get("content")
    if not isinstance(content, list | tuple):
        return message
    parts = cast("list[object]", content)
    return {**fields, "content": [_part(part, media) for part in parts]}


def _part(part: object, media: MediaCollector) -> object:
    part = _plain(part)
    if not isinstance(part, Mapping):
        return part
    fields = cast("Mapping[str, object]", part)
    found = {name: media.reference(fields[name]) for name in _PART_FIELDS if name in fields}
    return {**fields, **found}


def _plain(value: object) -> object:
    return value.model_dump(exclude_defaults=True) if isinstance(value, BaseModel) else value
