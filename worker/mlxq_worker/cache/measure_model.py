"""A model of the bundled one's family, larger and with random weights, to measure with."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_vlm.utils import get_model_and_args, update_module_configs

from mlxq_worker.bundled import bundled_model_path

SIDE: Final = 224
"""Pixels of the largest picture's sides: 196 tokens."""
_TEXT: Final = {
    "hidden_size": 256,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "intermediate_size": 768,
}
_VISION: Final = {
    "depth": 6,
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_heads": 6,
    "out_hidden_size": 256,
}


def write_larger(folder: Path) -> Path:
    """Write the model to ``folder``, which is made; returns it."""
    source = bundled_model_path()
    folder.mkdir(parents=True)
    for path in source.iterdir():
        if path.suffix in {".json", ".jinja"} and "index" not in path.name:
            shutil.copy(path, folder)
    config = _change(folder / "config.json", {"text_config": _TEXT, "vision_config": _VISION})
    pixels = {"size": {"longest_edge": SIDE * SIDE}, "max_pixels": SIDE * SIDE}
    _change(folder / "preprocessor_config.json", pixels)
    package, _ = get_model_and_args(config)
    parsed = update_module_configs(
        package.ModelConfig.from_dict(config), package, config, ["text", "vision"]
    )
    mx.random.seed(0)
    weights = dict(tree_flatten(package.Model(parsed).parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    return folder


def _change(path: Path, changes: dict[str, Any]) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(path.read_text())
    for name, change in changes.items():
        value[name] = {**value[name], **change} if isinstance(change, dict) else change
    path.write_text(json.dumps(value))
    return value
