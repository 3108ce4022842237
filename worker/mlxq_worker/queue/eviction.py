"""Watching that the server still keeps everything: no jobs are taken while it may evict them."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any, Final

from mlxq_schemas.errors import EvictionPolicy
from mlxq_worker.queue.connection import SAFE_POLICY, text
from mlxq_worker.queue.link import Link

log = logging.getLogger(__name__)

PERIOD: Final = 3.0
"""Seconds between looks."""
_POLICY: Final = re.compile(r"^maxmemory_policy:(\S+)", re.MULTILINE)


class EvictionWatch:
    """The step of the eviction duty; ``on_safe`` is called when jobs may be taken again."""

    def __init__(self, link: Link, on_safe: Callable[[], None] = lambda: None) -> None:
        self._link = link
        self._on_safe = on_safe
        self.policy = SAFE_POLICY

    @property
    def safe(self) -> bool:
        """False while the server may evict jobs."""
        return self.policy == SAFE_POLICY

    @property
    def problem(self) -> str:
        """The code for the worker's row, "" while there is none."""
        return "" if self.safe else EvictionPolicy.code

    def step(self) -> float:
        """Look at the policy; the seconds until the next look."""
        found, was_safe = self._found(), self.safe
        if found is None or found == self.policy:
            return PERIOD
        self.policy = found
        if not self.safe:
            log.error(
                "the server may evict jobs: none are taken until maxmemory-policy is noeviction",
                extra={"policy": found},
            )
        elif not was_safe:
            log.warning("the server keeps all jobs again", extra={"policy": found})
            self._on_safe()
        return PERIOD

    def _found(self) -> str | None:
        """The policy; None where the server hides it."""
        reply: Any = self._link.call(("INFO", "memory"))[0]
        if not isinstance(reply, Exception) and (found := _POLICY.search(text(reply))):
            return found[1]
        reply = self._link.call(("CONFIG GET", "maxmemory-policy"))[0]
        return None if isinstance(reply, Exception) or len(reply) < 2 else text(reply[1])
