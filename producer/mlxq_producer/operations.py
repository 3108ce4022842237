"""What a producer can do with a job that is under way: its result, its end, its queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from mlxq_producer.following import Follower, unknown_job
from mlxq_producer.steps import Steps, checked, run_script
from mlxq_schemas import GROUP, Cancelled, Keys, Result
from mlxq_schemas.errors import Expired, WaitTimeout
from mlxq_schemas.events import TERMINAL_TYPES
from mlxq_schemas.keys import check_name
from mlxq_schemas.wire import decode_result, encode_event

STRAY_TTL: Final = 30 * 86400
"""Seconds for which the entry of a cancelled job, pushed by hand, may wait to be dropped."""

CancelOutcome = Literal["cancelled", "asked", "ended"]


@dataclass(frozen=True)
class Operations:
    """Operations on the jobs of one queue; ``result_ttl`` is in seconds."""

    keys: Keys
    result_ttl: int = 86400

    def result(self, job_id: str, wait: float | None) -> Steps[Result]:
        """The stored result, waited for up to ``wait`` seconds (None: for ever)."""
        check_name("job id", job_id)
        result, seq = yield from self._stored(job_id)
        if result is None and wait != 0:
            yield from Follower(self.keys, {job_id: seq}, timeout=wait).events()
            result, _ = yield from self._stored(job_id)
        if result is None:
            raise WaitTimeout(
                f"job {job_id} has not ended yet: ask again, or wait for it (--wait 90s, wait=90)"
            )
        return result

    def _stored(self, job_id: str) -> Steps[tuple[Result | None, int]]:
        """The result if there is one, and how many events the job has so far."""
        job = self.keys.job(job_id)
        exists, (state, seq), data = yield from checked(
            ("EXISTS", job), ("HMGET", job, "state", "seq"), ("GET", self.keys.result(job_id))
        )
        if data is not None:
            return decode_result(data), 0
        if not exists:
            raise unknown_job(self.keys, job_id)
        if (state or b"").decode(errors="replace") in TERMINAL_TYPES:
            raise Expired(f"job {job_id} has ended and its result is gone (TTL)")
        return None, int(seq) if seq and seq.isdigit() else 0

    def cancel(self, job_id: str) -> Steps[CancelOutcome]:
        """End a job that waits or is delayed; ask its worker to end one that runs."""
        check_name("job id", job_id)
        keys = self.keys
        names = [keys.job(job_id), keys.events(job_id), keys.result(job_id), keys.results]
        event = encode_event(Cancelled(job=job_id))
        result = encode_event(Result(job=job_id, type="cancelled"))
        names += [keys.control, keys.delayed, keys.stray(job_id), *keys.all_jobs()]
        args = [job_id, GROUP, event, result, keys.tokens(job_id), self.result_ttl, STRAY_TTL]
        [reply] = yield from checked(run_script("cancel", names, args))
        match reply:
            case b"cancelled":
                return "cancelled"
            case b"asked":
                return "asked"
            case b"ended":
                return "ended"
            case _:
                raise unknown_job(keys, job_id)
