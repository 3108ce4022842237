"""Sending jobs again whose media had gone from the server before a worker came to them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final

from mlxq_producer.blobs import blobs_of
from mlxq_producer.dead import latest_letters, revive
from mlxq_producer.steps import Steps, Work
from mlxq_producer.submission import JobLike, Submission, prepare
from mlxq_producer.submitting import Submitter
from mlxq_schemas import Result
from mlxq_schemas.errors import MediaNotFound, MlxqError, QueueError, QueueUnavailable

MEDIA_GONE: Final = MediaNotFound.code


def lacks_media(result: Result | None) -> bool:
    """True for a job that may have failed only because its media had expired."""
    return result is not None and result.type == "failed" and result.code == MEDIA_GONE


def resend(submitter: Submitter, jobs: Mapping[str, JobLike]) -> Steps[list[str]]:
    """Store the media of failed jobs again and send the jobs again, under the same ids.

    ``jobs`` are as they were submitted, by id. Returns the ids of those that are under way again:
    their results will be new ones. A job whose files have changed or gone stays as it is.
    """
    try:
        return (yield from _resend(submitter, jobs))
    except QueueUnavailable:
        raise
    except QueueError:
        return []  # rights of old, or a full server: the failures stand


def _resend(submitter: Submitter, jobs: Mapping[str, JobLike]) -> Steps[list[str]]:
    ready: dict[str, Submission] = yield Work(partial(_prepared, submitter, jobs))
    needed = yield from blobs_of(submitter.keys, list(ready))
    others = {i: set(needed[i]) - item.blobs.keys() for i, item in ready.items()}
    names = sorted({sha for shas in others.values() for sha in shas})
    missing = yield from submitter.blobs.keep(dict.fromkeys(names, 0.0))
    whole = {i: item for i, item in ready.items() if not others[i] & missing}
    refused = yield from submitter.blobs.store(whole.values())
    good = [i for i, item in whole.items() if not refused.keys() & item.blobs.keys()]
    letters = yield from latest_letters(submitter.keys, good)
    return (yield from revive(submitter.keys, [x for x in letters if x.code == MEDIA_GONE]))


def _prepared(submitter: Submitter, jobs: Mapping[str, JobLike]) -> dict[str, Submission]:
    """Those of the jobs that bring media along, all of which can be read."""
    found: dict[str, Submission] = {}
    for job_id, job in jobs.items():
        try:
            item = prepare(job, inline_media=submitter.inline_media)
        except MlxqError:
            continue
        if item.blobs and not any(_errors(item)):
            found[job_id] = item
    return found


def _errors(item: Submission) -> Iterable[bool]:
    return (ref.error is not None for _, ref in item.job.media())
