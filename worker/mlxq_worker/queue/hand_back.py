"""Giving jobs back unfinished: another worker may take them at once, and counts no death."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mlxq_schemas import GROUP, Keys
from mlxq_worker.queue.claim import Claim
from mlxq_worker.queue.control import RECLAIM
from mlxq_worker.queue.link import Command, Link, run_script

IDLE_MS: Final = 30 * 24 * 3600 * 1000
"""Idle time that a handed-back entry pretends to have: longer than any lease."""


def hand_back_command(keys: Keys, worker: str, claim: Claim) -> Command:
    """The command that gives one job back, if the lease still holds."""
    return run_script(
        "hand_back",
        [keys.job(claim.job_id), claim.entry.stream],
        [claim.epoch, GROUP, worker, claim.entry.id, IDLE_MS],
    )


def hand_back(link: Link, keys: Keys, worker: str, claims: Sequence[Claim]) -> int:
    """Give jobs back and tell the other workers; how many were still ours.

    Raises one of ``LINK_ERRORS``. What the server refuses is taken over when its lease ends.
    """
    if not claims:
        return 0
    commands = [hand_back_command(keys, worker, claim) for claim in claims]
    replies = link.call(*commands, ("PUBLISH", keys.control, RECLAIM))
    return replies[:-1].count(1)
