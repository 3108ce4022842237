"""Cache folders for the tests of the SSD tier."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from cache_blocks import LAYOUT
from mlxq_worker.cache.disk import DiskTier
from mlxq_worker.cache.disk_folder import CacheFolder

Tiers = Callable[..., DiskTier]


@pytest.fixture
def tiers(tmp_path) -> Iterator[Tiers]:
    """Opens tiers, on one folder unless told otherwise, and closes them at the end."""
    opened: list[DiskTier] = []

    def make(**options) -> DiskTier:
        options = {"max_bytes": 1 << 30, "layout": LAYOUT, **options}
        opened.append(DiskTier(options.pop("folder", tmp_path / "cache"), **options))
        return opened[-1]

    yield make
    assert all(tier.close(60) for tier in opened)


@pytest.fixture
def folder(tmp_path) -> CacheFolder:
    return CacheFolder(tmp_path / "cache")
