"""Files that are whole, and hold what the model cannot take up: misses, never failed rows."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cache_session import EVERY_FAMILY, RED, Session, prepare, text
from mlxq_worker.cache.caches import LAYOUT
from mlxq_worker.cache.disk import DiskTier
from mlxq_worker.cache.disk_format import Space, encode, read
from mlxq_worker.cache.host import HostArray, HostBlock

Change = Callable[[HostBlock], HostBlock]


def changed(**fields) -> Change:
    return lambda block: dataclasses.replace(block, **fields)


def each(change: Callable[[HostArray], HostArray]) -> Change:
    return lambda block: dataclasses.replace(block, arrays=tuple(map(change, block.arrays)))


def narrower(array: HostArray) -> HostArray:
    """Half of the last axis."""
    values = array.numpy()
    return HostArray.copy_of(values[..., : max(1, values.shape[-1] // 2)], array.dtype)


def shorter(array: HostArray) -> HostArray:
    return HostArray.copy_of(array.numpy()[..., :-1, :], array.dtype)


def other_type(array: HostArray) -> HostArray:
    return HostArray("uint8", (len(array.data),), array.data)


def integers(array: HostArray) -> HostArray:
    return HostArray("int32" if array.dtype == "float32" else "int16", array.shape, array.data)


def flat(array: HostArray) -> HostArray:
    return HostArray(array.dtype, (int(np.prod(array.shape)),), array.data)


def wider_meta(block: HostBlock) -> HostBlock:
    """Every number in it is larger."""
    raised = json.loads(block.meta or b"[]", parse_int=lambda number: int(number) + 7)
    return dataclasses.replace(block, meta=json.dumps(raised).encode())


CHANGES: dict[str, Change] = {
    "no JSON": changed(meta=b"\xff not JSON"),
    "other JSON": changed(meta=b'{"a": [1]}'),
    "null": changed(meta=b"null"),
    "other numbers": wider_meta,
    "no arrays": changed(arrays=()),
    "one array less": lambda block: dataclasses.replace(block, arrays=block.arrays[1:]),
    "one array more": lambda block: dataclasses.replace(
        block, arrays=(*block.arrays, block.arrays[0])
    ),
    "narrower": each(narrower),
    "shorter": each(shorter),
    "bytes": each(other_type),
    "integers": each(integers),
    "flat": each(flat),
}


def rewrite(folder: Path, change: Change) -> int:
    """Change all blocks; their files are whole again, under the same names."""
    files = [path for path in (folder / "blocks").rglob("*") if path.is_file()]
    for path in files:
        stored = read(path, Space())
        path.write_bytes(b"".join(encode(change(stored.block), stored.layout)))
    return len(files)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("family", ["qwen3_vl", "qwen3_5", "gemma3"])
def test_whole_files_with_wrong_content_fail_no_row(load, tmp_path, family, change):
    subject = load(family)
    prompt = prepare(subject, text(3), {"red": RED})
    want = subject.alone([prompt], 6)

    def ask() -> dict:
        disk = DiskTier(tmp_path, max_bytes=1 << 28, layout=LAYOUT, admit_at=1)
        session = Session(subject, disk=disk)
        assert session.ask(prompt, tokens=6) == want
        session.generator.close()
        return session.generator.stats()

    ask()
    assert rewrite(tmp_path, change) > 2
    stats = ask()
    assert stats["disk_corrupt"] > 0
    assert stats["cached_tokens"] == 0
    assert stats["images_recalled"] == 0
    assert ask()["cached_tokens"] > 0  # written again, and right


@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_blocks_of_the_model_itself_fit(load, tmp_path, family):
    """The check has a pattern to go by, and lets through what is right."""
    subject = load(family)
    prompt = prepare(subject, text(3), {"red": RED})
    for turn in range(2):
        disk = DiskTier(tmp_path, max_bytes=1 << 28, layout=LAYOUT, admit_at=1)
        session = Session(subject, disk=disk)
        session.ask(prompt)
        assert (session.cached > 0) == bool(turn)
        template = session.generator._recall._caches._prefix_loads._fit.__self__
        assert (template._block is not None) == bool(turn)
        session.generator.close()
        assert session.generator.stats()["disk_corrupt"] == 0
