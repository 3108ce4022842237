"""Tiny models with random weights, built from real configs, for families without a trained one."""

from __future__ import annotations

import importlib
import json
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from mlxq_worker.bundled import bundled_model_path

QWEN2_VL: dict[str, Any] = {
    "model_type": "qwen2_vl",
    "architectures": ["Qwen2VLForConditionalGeneration"],
    "vocab_size": 1024,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "rope_scaling": {"type": "mrope", "rope_type": "default", "mrope_section": [2, 3, 3]},
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
    "eos_token_id": 2,
    "image_token_id": 6,
    "video_token_id": 7,
    "vision_start_token_id": 3,
    "vision_end_token_id": 4,
    "vision_config": {
        "model_type": "qwen2_vl",
        "depth": 2,
        "embed_dim": 32,
        "hidden_size": 64,
        "mlp_ratio": 2,
        "num_heads": 2,
        "patch_size": 8,
        "spatial_patch_size": 8,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "in_channels": 3,
        "in_chans": 3,
    },
}


def build(folder: Path, config: dict[str, Any], seed: int = 0) -> Path:
    """Write a model of ``config`` with random weights, and the bundled model's tokenizer."""
    source = bundled_model_path()
    folder.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        if file.suffix in {".json", ".jinja"} and file.name != "config.json":
            shutil.copy(file, folder / file.name)
    preprocessor = json.loads((folder / "preprocessor_config.json").read_text())
    preprocessor["processor_class"] = "Qwen2VLProcessor"
    (folder / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    (folder / "config.json").write_text(json.dumps(config))
    family: Any = importlib.import_module(f"mlx_vlm.models.{config['model_type']}")
    parsed = family.ModelConfig.from_dict(dict(config))
    parsed.text_config = family.TextConfig.from_dict(config)
    parsed.vision_config = family.VisionConfig.from_dict(config["vision_config"])
    mx.random.seed(seed)
    model = family.Model(parsed)
    weights = {
        name: mx.random.normal(w.shape) * 0.2 for name, w in tree_flatten(model.parameters())
    }
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    return folder
