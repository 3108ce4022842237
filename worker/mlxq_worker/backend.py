"""What a worker computes with, behind one small interface: the queue side sees no more of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from mlxq_schemas import Job
from mlxq_worker.engine.request import Request, Response

BlobReader = Callable[[str], bytes | None]
"""Bytes of an inlined medium by its sha256, or None if the queue does not hold them."""


class Generator(Protocol):
    """A continuous batch generator. All but ``abort`` is called in the engine thread only."""

    def insert(self, requests: Sequence[Request]) -> list[int]:
        """Queue requests; cheap. Returns their uids."""
        ...

    def next(self) -> list[Response]:
        """One step: at most one prefill slice and one decode step."""
        ...

    def abort(self, which: int | str) -> None:
        """Ask for the end of a request at the next step; any thread may call it.

        A uid names one life of a request, a request id those inserted so far.
        """
        ...

    def has_work(self) -> bool:
        """True while any request is queued, in prefill or decoding."""
        ...

    def stats(self) -> dict[str, Any]:
        """Counters and gauges by name."""
        ...

    def close(self) -> list[Response]:
        """End every row; returns their last responses."""
        ...


@dataclass(frozen=True)
class Backend:
    """A loaded model.

    ``prepare`` turns a job into a request; it is called in prepare threads, raises
    :class:`~mlxq_schemas.errors.JobError` for what cannot be done, and starts no MLX work.
    ``names`` are what a job's ``model`` may say; ``identity`` goes into results.
    """

    generator: Generator
    prepare: Callable[[Job, BlobReader], Request]
    names: frozenset[str]
    identity: str
    max_rows: int
