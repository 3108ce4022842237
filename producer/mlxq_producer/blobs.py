"""Bytes of media on the server: stored once by content, kept while a job may need them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mlxq_producer.steps import Command, Steps, call, checked, refusal, run_script
from mlxq_producer.submission import Submission
from mlxq_schemas import Job, Keys
from mlxq_schemas.errors import MlxqError, QueueError, QueueUnavailable

PAGE: Final = 500
"""Jobs whose blobs are asked for at once."""

_BLOB: Final = re.compile(r"blob:([0-9a-f]{64})\Z")


@dataclass(frozen=True)
class Blobs:
    """The blobs of one queue; ``ttl`` is how many seconds they live at least after this use.

    Whatever ``ttl`` says, they live until a day after the last moment at which their job may
    begin or must have ended. All this is measured by the server's clock.
    """

    keys: Keys
    ttl: int

    def store(self, items: Iterable[Submission]) -> Steps[dict[str, MlxqError]]:
        """Store what jobs bring along and the server does not hold; what it refused, by sha256.

        Bytes go out only where a blob's life could not be prolonged, and before their jobs: no
        worker meets a job whose media are still under way.
        """
        found = list(items)
        until: dict[str, float] = {}
        for item in found:
            for sha in {*item.blobs, *blobs_in(item.job)}:
                until[sha] = max(until.get(sha, 0.0), _last_moment(item.job))
        if not until:
            return {}
        try:
            missing = yield from self.keep(until)
            data = {sha: b for item in found for sha, b in item.blobs.items() if sha in missing}
            refused = yield from self._set(data)
            yield from self.keep({sha: until[sha] for sha in data})
        except QueueUnavailable:
            raise
        except QueueError as error:
            return dict.fromkeys(until, error)
        return refused

    def _set(self, data: Mapping[str, bytes]) -> Steps[dict[str, MlxqError]]:
        """Store bytes by their sha256; what the server refused."""
        if not data:
            return {}
        stores: list[Command] = [
            ("SET", self.keys.blob(sha), one, "NX", "EX", self.ttl) for sha, one in data.items()
        ]
        replies = yield from call(*stores)
        answers = zip(data, replies, strict=True)
        return {sha: refusal(reply) for sha, reply in answers if isinstance(reply, Exception)}

    def keep(self, until: Mapping[str, float]) -> Steps[set[str]]:
        """Prolong the lives of blobs, never cutting another producer's time; those not there.

        ``until`` has for each the last moment (unix seconds) at which a job may need it, or 0.
        """
        names = list(until)
        if not names:
            return set()
        keys = [self.keys.blob(sha) for sha in names]
        command = run_script("keep_blobs", keys, [self.ttl, 0, *until.values()])
        [places] = yield from checked(command)
        return {names[place - 1] for place in places}


def blobs_in(job: Job) -> Iterator[str]:
    """The sha256s of the blobs that a job names."""
    for _, ref in job.media():
        if found := _BLOB.match(ref.url):
            yield found[1]


def blobs_of(keys: Keys, job_ids: Sequence[str]) -> Steps[dict[str, list[str]]]:
    """The blobs that jobs on the server need, by id; none for a job that is not there."""
    found: dict[str, list[str]] = {}
    while len(found) < len(job_ids):
        page = job_ids[len(found) : len(found) + PAGE]
        [answers] = yield from checked(run_script("blobs_of", list(map(keys.job, page)), []))
        found |= {job_id: _words(one) for job_id, one in zip(page, answers, strict=False)}
    return found


def _words(answer: Any) -> list[str]:
    return answer.decode().split()


def _last_moment(job: Job) -> float:
    return max(job.not_before or 0.0, job.deadline or 0.0)
