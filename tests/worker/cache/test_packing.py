"""Keys and values in 8 bits on disk: near to exact, keyed apart, exact where they are not meant."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

import tiny_models
from cache_session import RED, Session, prepare, text
from mlxq_worker.cache.block import Block
from mlxq_worker.cache.caches import LAYOUT
from mlxq_worker.cache.chain import BLOCK
from mlxq_worker.cache.disk import DiskTier
from mlxq_worker.cache.layout import Layout
from mlxq_worker.cache.packing import Packing
from mlxq_worker.config import WorkerConfig
from mlxq_worker.models.load import load_model
from mlxq_worker.models.registry import adapter_for

KEY = bytes(32)
TOLERANCE = 0.02
"""Greatest difference of logits from exact ones, as a share of their spread."""


@pytest.fixture(scope="module", params=["qwen3_vl", "qwen3_5", "gemma3", "llama"])
def loaded(request, tmp_path_factory):
    folder = tiny_models.build_wide(request.param, tmp_path_factory.mktemp(request.param))
    return load_model(str(folder), "float32")


def logits(loaded, packing: Packing | None) -> np.ndarray:
    """[vocab] after a prefix that went through blocks, and three tokens more."""
    adapter = adapter_for(loaded.model)
    layout = Layout(adapter.make_cache)
    ids = loaded.tokenizer(text(1, 60))["input_ids"]
    end = len(ids) // BLOCK * BLOCK
    assert end >= BLOCK
    cache = adapter.make_cache()
    adapter.prefill_text(ids[:end], 0, cache)
    blocks = [layout.cut(KEY, cache, n + BLOCK) for n in range(0, end, BLOCK)]
    moment = layout.moment(KEY, cache) if layout.moving else None
    if packing:
        blocks = [packing.unpack(Block.from_host(packing.pack(b).to_host())) for b in blocks]
        if moment:
            assert packing.pack(moment) is moment
    own = layout.restore(blocks, moment)
    adapter.prefill_text([40, 41], end, own)
    batch = [type(layer).merge([layer]) for layer in own]
    return np.array(adapter.decode(mx.array([42]), np.array([end + 2], np.int32), batch))[0]


def test_logits_after_packed_blocks_are_near_to_exact_ones(loaded):
    exact, near = logits(loaded, None), logits(loaded, Packing())
    off = np.abs(near - exact).max() / np.ptp(exact)
    assert 0 < off < TOLERANCE


@pytest.mark.parametrize(
    ("dtype", "share"), [("float32", 0.29), ("bfloat16", 0.54), ("float16", 0.54)]
)
def test_half_the_bytes_or_fewer(dtype, share):
    array = mx.random.normal((4, 1, 2, BLOCK, 128)).astype(getattr(mx, dtype))
    block = Block(KEY, (array, array[:2]), b"[[0, 1, 2, 3], [4, 5]]")
    packed = Packing().pack(block)
    assert packed.nbytes < share * block.nbytes + 200
    back = Packing().unpack(Block.from_host(packed.to_host()))
    assert (back.key, back.meta) == (block.key, block.meta)
    for one, other in zip(back.arrays, block.arrays, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        assert mx.abs(one - other).max().item() < 0.05


@pytest.mark.parametrize(
    "block",
    [
        Block(KEY, (mx.zeros((2, 1, 2, BLOCK, 20)),), b"[[0, 1]]"),  # no groups in its last axis
        Block(KEY, (mx.zeros((2, 1, 2, BLOCK, 64), mx.int32),), b"[[0, 1]]"),
        Block(KEY, (mx.zeros((9, 64)),)),  # features
        Block(KEY, (), b"[]"),
        Block(KEY, (mx.zeros((1, 2, 9, 64)),), b'[[[{"array": 0}], ["0", "4"]]]'),  # a moment
    ],
)
def test_what_cannot_be_packed_stays_as_it_is(block):
    assert Packing().pack(block) is block
    assert Packing().unpack(block) is block


def test_exact_workers_read_no_packed_block_and_pictures_are_shared(load, tmp_path):
    subject = load("qwen3_vl")
    prompt = prepare(subject, text(3), {"red": RED})
    want = subject.alone([prompt], 8)

    def ask(packing: Packing | None) -> dict:
        disk = DiskTier(tmp_path, max_bytes=1 << 28, layout=LAYOUT, admit_at=1)
        session = Session(subject, disk=disk, packing=packing)
        said = session.ask(prompt, tokens=8)
        if packing is None:
            assert said == want
        session.generator.close()
        return session.generator.stats()

    first = ask(Packing())
    assert first["cached_tokens"] == 0
    exact = ask(None)
    assert exact["cached_tokens"] == 0  # nothing of the other's
    assert exact["images_recalled"] == 1  # but pictures, which stay exact
    for packing in (Packing(), None):
        again = ask(packing)
        assert again["cached_tokens"] > 0
        assert again["disk_corrupt"] == 0


def test_the_option_is_off_and_names_texts_apart(tmp_path):
    assert WorkerConfig(name="x").cache_dir_bits is None
    with pytest.raises(ValueError, match="cache_dir_bits"):
        WorkerConfig(name="x", cache_dir=tmp_path, cache_dir_bits=4)  # type: ignore[arg-type]
    assert Packing(8).label == "disk8"
