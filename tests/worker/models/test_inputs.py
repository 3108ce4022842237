"""From text and pictures to token ids and arrays: the quirks of each family's processor."""

from __future__ import annotations

import numpy as np
import pytest
from mlx_vlm.utils import prepare_inputs

from mlxq_schemas.errors import InvalidJob
from mlxq_worker.models.inputs import build_inputs
from pictures import draw

RED = draw([("red", "circle", 4)])

PLACEHOLDERS = {
    "qwen2_vl": "<|image_pad|>",
    "qwen3_5": "<|image_pad|>",
    "gemma3": "<start_of_image>",
    "gemma4": "<|image|>",
    "smolvlm": "<image>",
    "idefics3": "<image>",
    "internvl_chat": "<image>",
    "llava": "<image>",
    "pixtral": "[IMG]",
}

STANDS_FOR_MEDIA = {
    "qwen2_vl": "<|video_pad|>",
    "gemma3": "<image_soft_token>",
    "gemma4": "<|audio|>",
}


def test_inputs_are_those_of_the_library(showing):
    """But for LLaVA's, whose processor it cannot call, and for a start token that it doubles."""
    if showing.loaded.model.config.model_type == "llava":
        return
    images = [RED, draw([("blue", "square", 2)], (128, 72))]
    ours = showing.prepare("Compare them.", images)
    text = showing.text("Compare them.", 2)
    theirs = prepare_inputs(showing.loaded.processor, images=images, prompts=text)
    count = len(ours.ids)
    assert ours.ids == np.array(theirs["input_ids"])[0, -count:].tolist()
    for name, value in ours.arrays.items():
        want = theirs[name]
        if name == "mm_token_type_ids":
            want = want[:, -count:]
        assert isinstance(value, list) == isinstance(want, list)
        pairs = zip(value, want, strict=True) if isinstance(value, list) else [(value, want)]
        assert all(np.array_equal(a, np.array(b)) for a, b in pairs)


@pytest.mark.parametrize(("name", "placeholder"), PLACEHOLDERS.items())
def test_placeholders_and_images_must_match(load, name, placeholder):
    subject = load(name)
    for images, found in (([], 1), ([RED, RED], 1), ([RED], 2)):
        text = subject.text(f"a{placeholder * found}b")
        with pytest.raises(InvalidJob, match=r"placeholders .* leave that word out"):
            build_inputs(subject.loaded.processor, text, images)
    assert subject.prepare("ab", [RED]).images == 1


@pytest.mark.parametrize(("name", "word"), STANDS_FOR_MEDIA.items())
def test_words_that_stand_for_media_are_refused_in_text(load, name, word):
    subject = load(name)
    with pytest.raises(InvalidJob, match="stands for a medium"):
        subject.prepare(f"see {word}", [RED])


@pytest.mark.parametrize("word", ["<video>", "<|video_pad|>x", "<image_soft_token>"])
def test_words_that_mean_nothing_to_the_model_are_text(load, word):
    assert load("llava").prepare(f"see {word}", [RED]).images == 1


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_a_text_model_takes_no_images(load, name):
    with pytest.raises(InvalidJob, match="takes no images"):
        build_inputs(load(name).loaded.processor, "hello", [RED])


@pytest.mark.parametrize("name", ["gemma3", "gemma4", "llava", "llama"])
def test_there_is_one_start_token_whoever_sets_it(load, name):
    """The Gemma templates write it, the others leave it to the tokenizer, which always adds it."""
    subject = load(name)
    start = subject.loaded.tokenizer.bos_token_id
    for images in ([], [RED]) if subject.shows else ([],):
        ids = subject.prepare("ab", images).ids
        assert ids[0] == start
        assert ids.count(start) == 1


@pytest.mark.parametrize("name", ["qwen3_vl", "pixtral", "qwen3"])
def test_no_start_token_where_the_model_has_none(load, name):
    subject = load(name)
    want = subject.loaded.tokenizer(subject.text("ab"), add_special_tokens=False)["input_ids"]
    assert subject.prepare("ab").ids == want


def test_long_prompts_are_not_cut(load):
    subject = load("internvl_chat")
    words = "word " * 6000
    assert subject.loaded.tokenizer.model_max_length < 6000
    assert len(subject.prepare(words, [RED]).ids) > 6000


def test_pictures_of_different_shapes(load):
    """Gemma 4 keeps each picture's shape; Pixtral pads and says what the sizes were."""
    images = [draw([], (64, 128)), draw([], (128, 64))]
    pixels = load("gemma4").prepare("ab", images).arrays["pixel_values"]
    assert isinstance(pixels, list)
    assert [array.shape[0] for array in pixels] == [3, 3]
    arrays = load("pixtral").prepare("ab", images).arrays
    assert arrays["pixel_values"].shape == (2, 3, 48, 48)
    assert arrays["image_sizes"].tolist() == [[48, 24], [24, 48]]
