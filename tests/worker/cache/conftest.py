"""Cache folders for the tests of the SSD tier, and sessions that follow one another on one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from cache_blocks import LAYOUT as TEST_LAYOUT
from cache_session import Session
from mlxq_worker.cache.caches import LAYOUT
from mlxq_worker.cache.disk import DiskTier
from mlxq_worker.cache.disk_folder import CacheFolder

Tiers = Callable[..., DiskTier]


@pytest.fixture
def tiers(tmp_path) -> Iterator[Tiers]:
    """Opens tiers, on one folder unless told otherwise, and closes them at the end."""
    opened: list[DiskTier] = []

    def make(**options) -> DiskTier:
        options = {"max_bytes": 1 << 30, "layout": TEST_LAYOUT, **options}
        opened.append(DiskTier(options.pop("folder", tmp_path / "cache"), **options))
        return opened[-1]

    yield make
    assert all(tier.close(60) for tier in opened)


@pytest.fixture
def folder(tmp_path) -> CacheFolder:
    return CacheFolder(tmp_path / "cache")


@pytest.fixture
def start(tmp_path):
    """Starts sessions one after the other on one folder, as a worker that restarts."""
    running: list[Session] = []

    def one(subject, *, admit_at: int = 1, **options) -> Session:
        while running:
            running.pop().generator.close()
        disk = DiskTier(tmp_path / "cache", max_bytes=1 << 28, layout=LAYOUT, admit_at=admit_at)
        running.append(Session(subject, disk=disk, identity="m", **options))
        return running[-1]

    yield one
    while running:
        running.pop().generator.close()
