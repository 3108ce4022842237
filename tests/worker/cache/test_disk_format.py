"""Files of blocks: exactly what was written, or nothing."""

from __future__ import annotations

import os
import random
import tempfile
from pathlib import Path

import msgpack
import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from cache_blocks import LAYOUT, make_block, same
from mlxq_worker.cache.disk_format import MAGIC, Damage, Damaged, Space, encode, read
from mlxq_worker.cache.host import ITEM_BYTES, HostArray, HostBlock, array_bytes

TRIALS = 200


@st.composite
def arrays(draw: st.DrawFn) -> HostArray:
    dtype = draw(st.sampled_from(sorted(ITEM_BYTES)))
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=4)))
    size = array_bytes(dtype, shape)
    return HostArray(
        dtype, shape, np.frombuffer(draw(st.binary(min_size=size, max_size=size)), "B")
    )


blocks = st.builds(
    HostBlock,
    st.binary(min_size=32, max_size=32),
    st.lists(arrays(), max_size=5).map(tuple),
    st.binary(max_size=100),
)


def store(path: Path, block: HostBlock, layout: str = LAYOUT) -> bytes:
    raw = b"".join(encode(block, layout))
    path.write_bytes(raw)
    return raw


def refused(path: Path) -> Damage:
    with pytest.raises(Damaged) as error:
        read(path, Space())
    return error.value.kind


@given(block=blocks, layout=st.text())
def test_a_block_comes_back_as_it_went(block: HostBlock, layout: str):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x"
        store(path, block, layout)
        stored = read(path, Space())
    assert stored.layout == layout
    assert same(stored.block, block)
    assert stored.block.nbytes == block.nbytes


def test_arrays_are_aligned_and_cannot_be_changed(tmp_path):
    block = make_block(1)
    for path in (tmp_path / "a", tmp_path / "b"):
        store(path, block)
    space = Space(100_000)
    starts = []
    for path in (tmp_path / "a", tmp_path / "b"):
        for array in read(path, space).block.arrays:
            with pytest.raises(ValueError, match="read-only"):
                array.data[:] = 0
            if len(array.data):
                starts.append(array.data.__array_interface__["data"][0])
    assert {(start - starts[0]) % 64 for start in starts} == {0}


def test_no_changed_byte_passes(tmp_path):
    """Flips, cuts, additions, holes, and bytes of another block: each is found."""
    rng = random.Random(5)
    block, path = make_block(2, 4000), tmp_path / "x"
    whole = store(path, block)
    other = b"".join(encode(make_block(3, 4000), LAYOUT))
    for trial in range(TRIALS):
        raw, place = bytearray(whole), rng.randrange(len(whole))
        match trial % 5:
            case 0:
                raw[place] ^= 1 << rng.randrange(8)
            case 1:
                del raw[place:]
            case 2:
                raw += rng.randbytes(1 + place % 9)
            case 3:
                raw[place : place + 64] = bytes(len(raw[place : place + 64]))
            case _:
                raw[place:] = other[place:]
        path.write_bytes(raw)
        if bytes(raw) in (whole, other):
            continue
        assert refused(path) is not None
    path.write_bytes(whole)
    assert same(read(path, Space()).block, block)


@pytest.mark.parametrize("place", range(64))
def test_no_changed_byte_of_the_beginning_passes(tmp_path, place):
    raw = bytearray(store(tmp_path / "x", make_block(2)))
    raw[place] ^= 0x41
    (tmp_path / "x").write_bytes(raw)
    refused(tmp_path / "x")


def test_a_newer_version_is_known_as_such(tmp_path):
    raw = bytearray(store(tmp_path / "x", make_block(2)))
    raw[8] += 1
    (tmp_path / "x").write_bytes(raw)
    assert refused(tmp_path / "x") is Damage.FUTURE


@pytest.mark.parametrize(
    "header",
    [
        b"\xc1",
        msgpack.packb([1, 2]),
        msgpack.packb({"layout": "x"}),
        msgpack.packb({"layout": "x", "key": b"short", "meta": b"", "arrays": []}),
        msgpack.packb({"layout": "x", "key": bytes(32), "meta": b"", "arrays": [["float32", [9]]]}),
        msgpack.packb({"layout": "x", "key": bytes(32), "meta": b"", "arrays": [["odd", [0]]]}),
        msgpack.packb(
            {"layout": "x", "key": bytes(32), "meta": b"", "arrays": [["uint8", [-1, -1]]]}
        ),
    ],
)
def test_a_header_of_another_program_is_no_block(tmp_path, header):
    end = 40 + len(header)
    front = MAGIC + b"".join(
        number.to_bytes(size, "little") for number, size in ((1, 4), (len(header), 4), (end, 8))
    )
    digest = xxhash.xxh3_128(front + header).digest()
    (tmp_path / "x").write_bytes(front + digest + header)
    assert refused(tmp_path / "x") is Damage.CORRUPT


def test_only_regular_files_are_read(tmp_path):
    store(tmp_path / "x", make_block(2))
    (tmp_path / "link").symlink_to(tmp_path / "x")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="symbolic link"):
        read(tmp_path / "link", Space())
    with pytest.raises(OSError, match="not a regular file"):
        read(tmp_path / "pipe", Space())
    with pytest.raises(IsADirectoryError):
        read(tmp_path, Space())


@pytest.mark.parametrize(
    ("dtype", "shape", "size"), [("float32", (2,), 4), ("odd", (), 1), ("uint8", (-2, -2), 4)]
)
def test_bytes_that_do_not_fit_make_no_array(dtype, shape, size):
    with pytest.raises(ValueError, match=r"bytes|unknown|negative"):
        HostArray(dtype, shape, np.zeros(size, np.uint8))


def test_numpy_arrays_come_back_in_their_shape():
    array = np.arange(6, dtype=np.int32).reshape(2, 3).T
    host = HostArray.copy_of(array)
    assert host.dtype == "int32"
    assert (host.numpy() == array).all()
    halves = HostArray.copy_of(np.arange(3, dtype=np.uint16), "bfloat16")
    assert halves.numpy().dtype == np.uint16
    array[:] = 0
    assert host.numpy().any()
