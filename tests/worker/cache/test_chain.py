"""Names of prefixes: equal exactly where tokens and media are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxq_worker.cache.chain import BLOCK, TEXT, chain, owners, root
from mlxq_worker.models.prepared import Prepared

IMAGE = 9


ROOT = root("a")


def keys(ids, media=(), start=ROOT):
    prepared = Prepared(list(ids), media=tuple(media), images=len(media))
    return chain(start, prepared.ids, *owners(prepared, {IMAGE}))


def common(a, b):
    return sum(x == y for x, y in zip(a, b, strict=False))


TEXT_BLOCKS = list(range(100, 100 + 2 * BLOCK))


def picture(tokens=BLOCK):
    return [1, *[IMAGE] * tokens, 2]


@given(st.lists(st.integers(10, 99), max_size=200), st.lists(st.integers(10, 99), max_size=200))
def test_text_shares_as_far_as_it_is_equal(a, b):
    same = 0
    while same < min(len(a), len(b)) and a[same] == b[same]:
        same += 1
    assert len(keys(a)) == len(a) // BLOCK
    assert common(keys(a), keys(b)) == same // BLOCK


def test_text_before_an_image_is_shared_and_nothing_from_it_on():
    ids = TEXT_BLOCKS + picture() + TEXT_BLOCKS
    assert common(keys(ids, ["red"]), keys(ids, ["blue"])) == 2
    assert keys(ids, ["red"]) == keys(ids, ["red"])


def test_the_order_of_images_counts():
    ids = picture() + TEXT_BLOCKS + picture()
    a, b = keys(ids, ["red", "blue"]), keys(ids, ["blue", "red"])
    assert common(a, b) == 0
    assert common(a, keys(ids, ["red", "green"])) == (2 + BLOCK + 2 * BLOCK) // BLOCK


def test_two_images_in_one_block_count_in_their_order():
    ids = [1, IMAGE, IMAGE, 2, 1, IMAGE, IMAGE, 2, *TEXT_BLOCKS]
    assert common(keys(ids, ["red", "blue"]), keys(ids, ["blue", "red"])) == 0


def test_media_that_cannot_be_told_apart_count_together():
    tiled = [IMAGE, 3, IMAGE, 3, IMAGE, *TEXT_BLOCKS]
    assert common(keys(tiled, ["red", "blue"]), keys(tiled, ["red", "green"])) == 0
    whose, names = owners(Prepared(tiled, media=("red", "blue"), images=2), {IMAGE})
    assert set(whose.tolist()) == {0, TEXT}
    assert len(names) == 1


def test_pictures_without_a_name_count_by_their_pixels():
    ids = picture() + TEXT_BLOCKS

    def unnamed(value):
        prepared = Prepared(ids, {"pixel_values": np.full((2, 2), value)}, images=1)
        return chain(root("a"), ids, *owners(prepared, {IMAGE}))

    assert unnamed(1.0) == unnamed(1.0)
    assert common(unnamed(1.0), unnamed(2.0)) == 0


@pytest.mark.parametrize("parts", [("b",), ("a", ""), ("", "a"), ("1:a;",)])
def test_other_roots_share_nothing(parts):
    assert common(keys(TEXT_BLOCKS), keys(TEXT_BLOCKS, start=root(*parts))) == 0
