"""Write a tiny model with random weights to a folder."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_vlm.utils import get_model_and_args, update_module_configs
from tokenizers import AddedToken, Tokenizer
from tokenizers.processors import TemplateProcessing

from mlxq_worker.bundled import bundled_model_path
from tiny_models.family import Family, Ids

_MODULES = ("text", "vision", "perceiver", "projector", "audio")


def write(folder: Path, family: Family, seed: int = 0) -> Path:
    """Write config, tokenizer, processor files and float32 weights of ``family``."""
    folder.mkdir(parents=True, exist_ok=True)
    ids = _write_tokenizer(folder, family)
    config = family.config(ids)
    config.setdefault("eos_token_id", [ids["<|im_end|>"]])
    _write_json(folder / "config.json", config)
    if family.preprocessor is not None:
        _write_json(folder / "preprocessor_config.json", family.preprocessor)
    if family.processor is not None:
        _write_json(folder / "processor_config.json", family.processor)
    mx.random.seed(seed)
    weights = {
        name: _random(name, value, family)
        for name, value in tree_flatten(_model(config).parameters())
    }
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    return folder


def _write_tokenizer(folder: Path, family: Family) -> Ids:
    """The bundled tokenizer with the family's special tokens added."""
    source = bundled_model_path()
    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in family.added])
    if family.bos is not None:
        start = (family.bos, tokenizer.token_to_id(family.bos))
        tokenizer.post_processor = TemplateProcessing(
            single=f"{family.bos} $A", special_tokens=[start]
        )
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = json.loads((source / "tokenizer_config.json").read_text())
    del settings["added_tokens_decoder"]
    settings.pop("additional_special_tokens", None)
    settings |= {"chat_template": family.template, "extra_special_tokens": family.named}
    settings["bos_token"] = family.bos
    _write_json(folder / "tokenizer_config.json", settings)
    return tokenizer.get_vocab(with_added_tokens=True)


def _model(config: dict[str, Any]) -> Any:
    package, _ = get_model_and_args(config)
    config = json.loads(json.dumps(config))  # parsing writes into it
    config.setdefault("text_config", config.pop("llm_config", {}))
    config.setdefault("vision_config", {})
    parsed = package.ModelConfig.from_dict(config)
    return package.Model(update_module_configs(parsed, package, config, list(_MODULES)))


def _random(name: str, value: mx.array, family: Family) -> mx.array:
    """Matrices drawn anew, so large that layers change what they are given; the rest stirred."""
    if value.ndim < 2:
        return value + 0.1 * mx.random.normal(value.shape)
    if "embed_tokens" in name:
        return mx.random.normal(value.shape) * family.embedding
    return mx.random.normal(value.shape) * family.gain / math.sqrt(value.size / value.shape[0])


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value))
