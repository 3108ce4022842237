"""Weights in few bits, as mlx-vlm's own conversion computes and writes them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from mlx_vlm.quant_utils import quantize_model
from mlx_vlm.utils import load_model, save_config, save_weights, skip_multimodal_module

GROUP = 32
"""Values that share a scale: tiny matrices have too few columns for more."""


def quantise(source: Path, folder: Path, bits: int) -> Path:
    """Write the model of ``source`` to ``folder``, its language model in so many ``bits``."""
    model = load_model(source, lazy=True)
    config = json.loads((source / "config.json").read_text())
    config.setdefault("vision_config", {})
    own = getattr(model, "quant_predicate", None) or (lambda *_: True)
    model, config = quantize_model(
        model,
        config,
        GROUP,
        bits,
        quant_predicate=lambda path, module: not skip_multimodal_module(path) and own(path, module),
    )
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.safetensors*"))
    save_weights(folder, model, donate_weights=True)
    save_config(config, config_path=folder / "config.json")
    return folder
