"""Moving delayed jobs to their streams when they are due; every worker does it."""

from __future__ import annotations

from typing import Any, Final

from mlxq_schemas import Keys
from mlxq_schemas.clock import seconds_of
from mlxq_schemas.errors import QueueError
from mlxq_worker.queue.connection import text
from mlxq_worker.queue.link import Command, Link, run_script

PERIOD: Final = 0.5
"""Most seconds between looks: how late a job may be whose delay is shorter than the others'."""
PAGE: Final = 100


class Promoter:
    """The step of the delayed duty."""

    def __init__(self, link: Link, keys: Keys) -> None:
        self._link = link
        self._keys = keys

    def step(self) -> float:
        """Move what is due; the seconds until the next look.

        Raises :class:`QueueError` if the server refuses a move; the job then stays delayed.
        """
        now, dues = self._look()
        due = [job_id for job_id, at in dues.items() if at <= now]
        refusals = [r for r in self._move(due) if isinstance(r, Exception)]
        if refusals:
            raise QueueError(f"the server refused to move {len(refusals)} jobs: {refusals[0]}")
        if len(due) == PAGE:
            return 0.0
        return min([PERIOD, *(at - now for at in dues.values() if at > now)])

    def _look(self) -> tuple[float, dict[str, float]]:
        """The server's time (unix seconds), and the due times of the first jobs."""
        first = ("-inf", "+inf", "WITHSCORES", "LIMIT", 0, PAGE)
        time, reply = self._link.call(("TIME",), ("ZRANGEBYSCORE", self._keys.delayed, *first))
        for answer in (time, reply):
            if isinstance(answer, Exception):
                raise answer
        pairs = zip(reply[::2], reply[1::2], strict=True)
        return seconds_of(time), {text(job_id): float(due) for job_id, due in pairs}

    def _move(self, job_ids: list[str]) -> list[Any]:
        commands = [self._command(job_id) for job_id in job_ids]
        return self._link.call(*commands) if commands else []

    def _command(self, job_id: str) -> Command:
        keys = self._keys
        names = [keys.job(job_id), keys.delayed, *keys.all_jobs()]
        return run_script("promote", names, [job_id])
