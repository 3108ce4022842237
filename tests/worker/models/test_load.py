"""From a folder to a model that is ready."""

from __future__ import annotations

import json

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from mlxq_schemas.errors import ModelNotLoaded
from mlxq_worker.models.load import load_model


def test_a_text_folder_gives_a_tokenizer_as_processor(load):
    loaded = load("llama").loaded
    assert loaded.tokenizer is loaded.processor
    assert loaded.context == 2048


def test_everything_that_ends_a_row_is_known(load):
    """Idefics 3 ends a turn with a token that only its processor names."""
    loaded = load("idefics3").loaded
    names = {loaded.tokenizer.convert_ids_to_tokens(i) for i in loaded.eos}
    assert names == {"<|im_end|>", "<end_of_utterance>"}


def test_the_context_length_is_found_under_either_name(load):
    assert load("internvl_chat").loaded.context == 2048
    assert load("gemma3").loaded.context == 2048


def test_weights_that_need_full_precision_keep_it(load):
    parameters = dict(tree_flatten(load("qwen3_5", "bfloat16").loaded.model.parameters()))
    kept = {name.rsplit(".", 1)[-1] for name, w in parameters.items() if w.dtype == mx.float32}
    assert kept == {"A_log"}


@pytest.mark.parametrize("parts", [True, False])
def test_internvl_reads_the_text_of_messages(load, parts):
    text = "What is this?"
    content = [{"type": "text", "text": text}, {"type": "image"}] if parts else text
    rendered = load("internvl_chat").loaded.processor.apply_chat_template(
        [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
    )
    assert rendered == f"User: {'<image>' if parts else ''}{chr(10) if parts else ''}{text}\n" + (
        "Assistant:\n"
    )


def test_a_folder_of_an_unknown_type_says_so(folders, tmp_path):
    for file in folders("llama").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "no_such"}))
    with pytest.raises(ModelNotLoaded, match=r"does not load: .*no_such"):
        load_model(str(tmp_path))
