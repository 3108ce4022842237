"""Windows of a vision tower: none is empty, and what is seen through them is unchanged."""

from __future__ import annotations

import itertools

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from mlx_vlm.models.qwen2_5_vl.config import VisionConfig
from mlx_vlm.models.qwen2_5_vl.vision import VisionModel
from mlx_vlm.models.zaya1_vl.config import VisionConfig as ZayaConfig
from mlx_vlm.models.zaya1_vl.vision import VisionModel as ZayaModel

from mlxq_worker.models.registry import adapter_for
from mlxq_worker.models.windows import FullWindows, leave_out_empty_windows
from pictures import draw

SIDES = range(2, 2 * 40 + 1, 2)
"""Patches of 14 px along a side of 28 to 1,120 px."""

SMALL = {
    "model_type": "qwen2_5_vl",
    "depth": 2,
    "hidden_size": 16,
    "intermediate_size": 32,
    "out_hidden_size": 16,
    "num_heads": 2,
    "fullatt_block_indexes": [1],
}
"""A tower whose patches (14 px, merged by 2) and windows (112 px) have the sizes of a real one."""

TOWERS = {
    "qwen2_5_vl": lambda: VisionModel(VisionConfig(**SMALL)),
    "zaya1_vl": lambda: ZayaModel(ZayaConfig(**SMALL)),
}


def mended(tower):
    model = nn.Module()
    model.vision_tower = tower
    leave_out_empty_windows(model)
    return model.vision_tower


@pytest.fixture(params=list(TOWERS))
def towers(request):
    """The library's tower and ours, of the same weights."""
    mx.random.seed(3)
    tower = TOWERS[request.param]()
    mx.eval(tower.parameters())
    return tower, mended(tower)


def grid(*sizes: tuple[int, ...]) -> mx.array:
    return mx.array([size if len(size) == 3 else (1, *size) for size in sizes])


def lengths(tower, *sizes: tuple[int, ...]) -> np.ndarray:
    return np.diff(np.array(tower.get_window_index(grid(*sizes))[1]))


def test_no_window_is_empty_whatever_the_size(towers):
    theirs, ours = towers
    spoilt = 0
    for height, width in itertools.product(SIDES, SIDES):
        index, bounds = theirs.get_window_index(grid((height, width)))
        own_index, own_bounds = ours.get_window_index(grid((height, width)))
        assert mx.array_equal(index, own_index)
        full = np.diff(np.array(bounds))
        spoilt += bool((full == 0).any())
        assert np.diff(np.array(own_bounds)).tolist() == full[full > 0].tolist()
    assert spoilt == 40**2 - 30**2  # every fourth side is a multiple of the window's


@pytest.mark.parametrize(
    "sizes",
    [
        [(8, 8), (16, 24), (8, 8)],
        [(6, 10), (8, 6), (2, 2), (24, 8)],
        [(3, 8, 16), (2, 6, 8)],
    ],
)
def test_no_window_of_several_pictures_or_frames_is_empty(towers, sizes):
    theirs, ours = towers
    full = lengths(theirs, *sizes)
    assert (full == 0).any()
    assert lengths(ours, *sizes).tolist() == full[full > 0].tolist()
    assert full.sum() == sum(np.prod(size) for size in sizes)


@pytest.mark.parametrize(
    "sizes",
    [[(2, 2)], [(6, 10)], [(8, 8)], [(8, 14)], [(22, 16)], [(10, 6), (8, 8), (2, 18)], [(2, 8, 6)]],
)
def test_features_equal_the_librarys(towers, sizes):
    """On the CPU attention over none of the patches does no harm."""
    theirs, ours = towers
    patches = int(sum(np.prod(size) for size in sizes))
    pixels = mx.random.normal((patches, 3 * 2 * 14 * 14), key=mx.random.key(patches))
    assert mx.array_equal(theirs(pixels, grid(*sizes)), ours(pixels, grid(*sizes)))


def test_no_attention_is_over_nothing(showing, monkeypatch):
    """In pictures of many sizes, alone and several in a call, and prompts of one token and more."""
    shapes = set()
    attend = mx.fast.scaled_dot_product_attention

    def note(q, k, v, **options):
        shapes.update([q.shape, k.shape])
        return attend(q, k, v, **options)

    monkeypatch.setattr(mx.fast, "scaled_dot_product_attention", note)
    sizes = [(64, 64), (96, 96), (128, 64), (64, 160), (96, 32), (70, 50)]
    pictures = [draw([("red", "circle", 4)], size) for size in sizes]
    prompts = [showing.prepare("Look:", [picture]) for picture in pictures]
    prompts += [showing.prepare("Look:", pictures[:2]), *showing.prompts()]
    showing.run(prompts, 3)
    assert shapes
    assert not [shape for shape in shapes if 0 in shape]


def test_the_engine_takes_a_model_as_the_library_loads_it(load):
    """The tower is mended by the adapter, once, and shares the weights."""
    loaded = load("qwen2_5_vl").loaded
    adapter_for(loaded.model)
    tower = loaded.model.vision_tower
    adapter_for(loaded.model)
    assert loaded.model.vision_tower is tower
    assert isinstance(tower, FullWindows)
    assert isinstance(tower, VisionModel)
