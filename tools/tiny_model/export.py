"""Write a checkpoint as a Hugging Face folder that mlx-vlm loads.

usage: python export.py build/main/final.pt build/tokenizer ../../worker/mlxq_worker/bundled/tiny-qwen3-vl
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import layout
import torch
from model import Config
from safetensors.torch import save_file

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
Json = dict[str, Any]


def model_config(config: Config) -> Json:
    """Return config.json.

    Written by hand: loaders look for `rope_theta` beside `rope_scaling`, and for
    `tie_word_embeddings` inside `text_config`.
    """
    text = {
        "model_type": "qwen3_vl_text",
        "vocab_size": layout.VOCAB_SIZE,
        "hidden_size": config.hidden,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.intermediate,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": config.rope_theta,
        "rope_scaling": {
            "rope_type": "default",
            "type": "default",
            "mrope_section": list(config.mrope),
            "mrope_interleaved": True,
        },
        "max_position_embeddings": 2048,
        "attention_bias": False,
        "tie_word_embeddings": True,
        "eos_token_id": layout.IM_END,
        "pad_token_id": layout.PAD,
    }
    vision = {
        "model_type": "qwen3_vl",
        "depth": config.vision_depth,
        "hidden_size": config.vision_hidden,
        "intermediate_size": config.vision_intermediate,
        "num_heads": config.vision_heads,
        "out_hidden_size": config.hidden,
        "patch_size": layout.PATCH,
        "spatial_merge_size": layout.MERGE,
        "temporal_patch_size": layout.TEMPORAL,
        "in_channels": 3,
        "num_position_embeddings": layout.POSITION_GRID**2,
        "deepstack_visual_indexes": list(config.deepstack),
        "hidden_act": "gelu_pytorch_tanh",
    }
    return {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "model_type": "qwen3_vl",
        "text_config": text,
        "vision_config": vision,
        "image_token_id": layout.IMAGE_PAD,
        "video_token_id": layout.VIDEO_PAD,
        "vision_start_token_id": layout.VISION_START,
        "vision_end_token_id": layout.VISION_END,
        "vision_token_id": layout.VISION_PAD,
        "tie_word_embeddings": True,
        "vocab_size": layout.VOCAB_SIZE,
        "eos_token_id": [layout.IM_END],
        "pad_token_id": layout.PAD,
        "dtype": "bfloat16",
    }


def processor_config(low: int, high: int) -> Json:
    """Return what image and video processors share; `low` and `high` in pixels."""
    return {
        "processor_class": "Qwen3VLProcessor",
        "patch_size": layout.PATCH,
        "temporal_patch_size": layout.TEMPORAL,
        "merge_size": layout.MERGE,
        "size": {"shortest_edge": low, "longest_edge": high},
        "min_pixels": low,
        "max_pixels": high,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "do_convert_rgb": True,
        "do_resize": True,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
    }


def export(checkpoint: Path, tokenizer: Path, out: Path) -> None:
    """Write weights in bfloat16 and every configuration file."""
    out.mkdir(parents=True, exist_ok=True)
    saved = torch.load(checkpoint, map_location="cpu")
    weights = {
        name: weight.to(torch.bfloat16).contiguous() for name, weight in saved["model"].items()
    }
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    image = processor_config(layout.MIN_PIXELS, layout.MAX_PIXELS) | {
        "image_processor_type": "Qwen2VLImageProcessor"
    }
    video = processor_config(layout.MIN_VIDEO_PIXELS, layout.MAX_VIDEO_PIXELS) | {
        "video_processor_type": "Qwen3VLVideoProcessor",
        "fps": 2.0,
        "min_frames": layout.FRAMES[0],
        "max_frames": layout.FRAMES[1],
    }
    generation = {
        "eos_token_id": [layout.IM_END, layout.PAD],
        "pad_token_id": layout.PAD,
        "do_sample": False,
        "max_new_tokens": 256,
    }
    files = {
        "config.json": model_config(Config(**saved["config"])),
        "generation_config.json": generation,
        "preprocessor_config.json": image,
        "video_preprocessor_config.json": video,
    }
    for name, content in files.items():
        (out / name).write_text(json.dumps(content, indent=1) + "\n")
    for name in TOKENIZER_FILES:
        shutil.copyfile(tokenizer / name, out / name)


def main() -> None:
    """Export, and print the sha256 of the weights."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    export(args.checkpoint, args.tokenizer, args.out)
    print(hashlib.sha256((args.out / "model.safetensors").read_bytes()).hexdigest(), args.out)


if __name__ == "__main__":
    main()
