"""Qwen2-VL, Qwen2.5-VL, Qwen3-VL with deepstack, and Qwen3.5 with recurrent layers."""

from __future__ import annotations

from typing import Any

from tiny_models.family import Family, Ids, chat, image_processor

_TEMPLATE = chat("<|vision_start|><|image_pad|><|vision_end|>")
_TEXT = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 2048,
}
_VISION = {
    "depth": 2,
    "num_heads": 2,
    "patch_size": 8,
    "spatial_patch_size": 8,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "in_channels": 3,
    "in_chans": 3,
}


def _preprocessor(processor: str) -> dict[str, Any]:
    pixels = {"shortest_edge": 4096, "longest_edge": 9216}
    return image_processor(
        "Qwen2VLImageProcessor",
        patch_size=8,
        temporal_patch_size=2,
        merge_size=2,
        size=pixels,
        min_pixels=4096,
        max_pixels=9216,
        processor_class=processor,
    )


def _common(ids: Ids) -> dict[str, Any]:
    return {
        "vocab_size": len(ids),
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
    }


def _qwen2_vl(ids: Ids) -> dict[str, Any]:
    vision = {"model_type": "qwen2_vl", "embed_dim": 32, "hidden_size": 64, "mlp_ratio": 2}
    return {
        "model_type": "qwen2_vl",
        **_TEXT,
        **_common(ids),
        "rope_scaling": {"type": "mrope", "rope_type": "default", "mrope_section": [2, 3, 3]},
        "tie_word_embeddings": False,
        "vision_config": _VISION | vision,
    }


def _qwen2_5_vl(ids: Ids) -> dict[str, Any]:
    vision = {
        "model_type": "qwen2_5_vl",
        "hidden_size": 32,
        "intermediate_size": 64,
        "out_hidden_size": 64,
        "window_size": 32,
        "fullatt_block_indexes": [1],
    }
    return {
        "model_type": "qwen2_5_vl",
        **_TEXT,
        **_common(ids),
        "rope_scaling": {"type": "mrope", "rope_type": "default", "mrope_section": [2, 3, 3]},
        "tie_word_embeddings": False,
        "vision_config": _VISION | vision,
    }


def _qwen3_vl(ids: Ids) -> dict[str, Any]:
    vision = {
        "model_type": "qwen3_vl",
        "hidden_size": 32,
        "intermediate_size": 64,
        "out_hidden_size": 64,
        "num_position_embeddings": 144,
        "deepstack_visual_indexes": [0],
    }
    text = {
        "model_type": "qwen3_vl_text",
        "vocab_size": len(ids),
        "head_dim": 16,
        "rope_scaling": {
            "rope_type": "default",
            "type": "default",
            "mrope_section": [2, 3, 3],
            "mrope_interleaved": True,
        },
        "tie_word_embeddings": False,
    }
    return {
        "model_type": "qwen3_vl",
        **_common(ids),
        "tie_word_embeddings": False,
        "text_config": _TEXT | text,
        "vision_config": _VISION | vision,
    }


def _qwen3_5(ids: Ids) -> dict[str, Any]:
    config = _qwen3_vl(ids)
    config["model_type"] = "qwen3_5"
    config["vision_config"] |= {"model_type": "qwen3_5", "deepstack_visual_indexes": []}
    config["text_config"] |= {
        "model_type": "qwen3_5_text",
        "num_hidden_layers": 4,
        "full_attention_interval": 2,
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4,
        "eos_token_id": ids["<|im_end|>"],
        "rope_parameters": {
            "type": "default",
            "mrope_section": [2, 1, 1],
            "mrope_interleaved": True,
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
        },
    }
    return config


QWEN2_VL = Family(_qwen2_vl, _TEMPLATE, preprocessor=_preprocessor("Qwen2VLProcessor"))
QWEN2_5_VL = Family(_qwen2_5_vl, _TEMPLATE, preprocessor=_preprocessor("Qwen2_5_VLProcessor"))
QWEN3_VL = Family(_qwen3_vl, _TEMPLATE, preprocessor=_preprocessor("Qwen3VLProcessor"), gain=2.5)
QWEN3_5 = Family(_qwen3_5, _TEMPLATE, preprocessor=_preprocessor("Qwen3VLProcessor"))
