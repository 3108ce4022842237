"""The seed of a sampled job that brings none: any worker that takes the job draws the same."""

from __future__ import annotations

import hashlib
from typing import Final

from mlxq_schemas import Job

BITS: Final = 63


def seed_of(job_id: str) -> int:
    """The first 63 bits of the id's sha256."""
    return int.from_bytes(hashlib.sha256(job_id.encode()).digest()[:8]) >> (64 - BITS)


def seeded(job: Job) -> Job:
    """The job with its seed; a greedy one needs none."""
    sampling = job.sampling
    if sampling.seed is not None or sampling.temperature == 0:
        return job
    sampling = sampling.model_copy(update={"seed": seed_of(job.id)})
    return job.model_copy(update={"sampling": sampling})
