"""What the commands say of a cache folder to people; ``--json`` gives the figures themselves."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from mlxq_schemas.quantities import shown_duration, shown_size
from mlxq_worker.cache.disk_care import Report as Verified

if TYPE_CHECKING:
    from mlxq_worker.cache.warm import Report as Warmed

_DAMAGE: Final = {
    "corrupt": "not what was written",
    "future": "of a newer version",
    "foreign": "another block than the name says",
}


def stats(found: Mapping[str, Any]) -> Iterator[str]:
    """Lines about :func:`~mlxq_worker.cache.disk_care.survey`."""
    yield f"folder: {found['folder']}"
    yield f"blocks: {found['blocks']:,} ({shown_size(found['bytes'])})"
    if found["newest_use"] is not None:
        oldest = _ago(found["oldest_use"])
        yield f"last used: {_ago(found['newest_use'])} (the oldest block: {oldest})"
    yield f"written in the last day: {shown_size(found['written_last_day'])}"
    for name, what in (("writing", "being written"), ("quarantined", "damaged, set aside")):
        if number := found[f"{name}_files"]:
            yield f"{what}: {_count(number, 'file')} ({shown_size(found[f'{name}_bytes'])})"


def verified(report: Verified) -> Iterator[str]:
    """Lines about what reading every file showed."""
    yield f"whole: {_count(report.blocks, 'block')} ({shown_size(report.bytes)})"
    if len(report.layouts) > 1:
        yield f"of {len(report.layouts)} layouts (models, or settings of a cache)"
    for kind, number in sorted(report.damaged.items()):
        yield f"damaged: {_count(number, 'block')}, {_DAMAGE[kind]}; moved to quarantine"
    if report.unreadable:
        yield f"unreadable: {_count(report.unreadable, 'file')}; look at the disk"
    if report.strangers:
        yield f"not ours, left alone: {_count(report.strangers, 'file')}"
    if report.stale:
        yield f"left by dead workers, removed: {_count(report.stale, 'file')}"
    yield "every block is whole" if report.clean else "workers compute again what is damaged"


def warmed(report: Warmed) -> Iterator[str]:
    """Lines about what warming has done."""
    known = f"{report.cached_tokens:,} were there" if report.cached_tokens else "all new"
    images = f", {_count(report.images, 'picture')}" if report.images else ""
    total = report.computed_tokens + report.cached_tokens
    yield f"prompts: {report.prompts:,} ({_count(total, 'token')}, {known}{images})"
    written = shown_size(report.written_bytes)
    yield f"written: {_count(report.written_blocks, 'block')} ({written})"
    yield f"in the folder: {_count(report.blocks, 'block')} ({shown_size(report.bytes)})"
    if report.evicted_blocks:
        yield f"gone to make room: {_count(report.evicted_blocks, 'block')}"
    if report.left_out_blocks:
        yield f"left out for want of room: {_count(report.left_out_blocks, 'block')}"
    if report.disk_failed:
        yield "the disk took no more"
    if report.failed:
        yield f"lines passed over: {len(report.failed):,}"


def cleared(number: int) -> str:
    """How many blocks were removed."""
    return f"removed: {_count(number, 'block')}"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _ago(moment: float) -> str:
    return f"{shown_duration(max(0.0, time.time() - moment))} ago"
