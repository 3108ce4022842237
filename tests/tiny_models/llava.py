"""LLaVA and Pixtral: a vision tower whose output takes the place of image tokens."""

from __future__ import annotations

from typing import Any

from tiny_models.family import Family, Ids, chat, image_processor

_TEXT = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 2048,
}
_VISION = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "patch_size": 8,
}


def _llava(ids: Ids) -> dict[str, Any]:
    return {
        "model_type": "llava",
        "text_config": {**_TEXT, "model_type": "llama", "vocab_size": len(ids)},
        "vision_config": {**_VISION, "model_type": "clip_vision_model", "image_size": 32},
        "image_token_index": ids["<image>"],
        "vision_feature_layer": -2,
        "vision_feature_select_strategy": "default",
        "vocab_size": len(ids),
    }


def _pixtral(ids: Ids) -> dict[str, Any]:
    return {
        "model_type": "pixtral",
        "text_config": {**_TEXT, "model_type": "mistral", "head_dim": 16, "vocab_size": len(ids)},
        "vision_config": {
            **_VISION,
            "model_type": "pixtral",
            "image_size": 48,
            "head_dim": 16,
        },
        "image_token_index": ids["[IMG]"],
        "vocab_size": len(ids),
    }


LLAVA = Family(
    _llava,
    chat("<image>\\n"),
    added=("<s>", "<image>"),
    bos="<s>",
    preprocessor=image_processor(
        "CLIPImageProcessor",
        size={"shortest_edge": 32},
        crop_size={"height": 32, "width": 32},
        do_center_crop=True,
        processor_class="LlavaProcessor",
    ),
    processor={
        "processor_class": "LlavaProcessor",
        "patch_size": 8,
        "vision_feature_select_strategy": "default",
        "num_additional_image_tokens": 1,
        "image_token": "<image>",
    },
)
PIXTRAL = Family(
    _pixtral,
    chat("[IMG]"),
    added=("[IMG]", "[IMG_BREAK]", "[IMG_END]"),
    preprocessor=image_processor(
        "PixtralImageProcessor",
        size={"longest_edge": 48},
        patch_size={"height": 8, "width": 8},
        processor_class="PixtralProcessor",
    ),
    processor={
        "processor_class": "PixtralProcessor",
        "patch_size": 8,
        "image_token": "[IMG]",
        "image_break_token": "[IMG_BREAK]",
        "image_end_token": "[IMG_END]",
    },
)
