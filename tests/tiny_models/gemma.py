"""Gemma 3 and Gemma 4, whose sliding windows are shorter than the prompts of the tests."""

from __future__ import annotations

from typing import Any

from tiny_models.family import Family, Ids, chat, image_processor

WINDOW = 24

_TEXT = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "head_dim": 16,
    "rms_norm_eps": 1e-6,
    "sliding_window": WINDOW,
    "max_position_embeddings": 2048,
}
_VISION = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "patch_size": 8,
}


def _gemma3(ids: Ids) -> dict[str, Any]:
    text = {
        "model_type": "gemma3_text",
        "vocab_size": len(ids),
        "num_hidden_layers": 4,
        "num_key_value_heads": 2,
        "query_pre_attn_scalar": 16,
        "sliding_window_pattern": 2,
        "mm_tokens_per_image": 16,
    }
    return {
        "model_type": "gemma3",
        "text_config": _TEXT | text,
        "vision_config": _VISION | {"model_type": "siglip_vision_model", "image_size": 64},
        "vocab_size": len(ids),
        "hidden_size": 64,
        "image_token_index": ids["<image_soft_token>"],
        "pad_token_id": ids["<|endoftext|>"],
    }


def _gemma4(ids: Ids) -> dict[str, Any]:
    text = {
        "model_type": "gemma4_text",
        "vocab_size": len(ids),
        "vocab_size_per_layer_input": len(ids),
        "hidden_size_per_layer_input": 8,
        "num_hidden_layers": 6,
        "num_kv_shared_layers": 2,
        "num_key_value_heads": 1,
        "global_head_dim": 32,
        "layer_types": ["sliding_attention", "full_attention"] * 3,
        "use_bidirectional_attention": "vision",
    }
    vision = {
        "model_type": "gemma4_vision",
        "num_key_value_heads": 2,
        "head_dim": 16,
        "global_head_dim": 16,
        "pooling_kernel_size": 2,
        "position_embedding_size": 64,
        "default_output_length": 16,
    }
    return {
        "model_type": "gemma4",
        "text_config": _TEXT | text,
        "vision_config": _VISION | vision,
        "audio_config": None,
        "vocab_size": len(ids),
        "hidden_size": 64,
        "image_token_id": ids["<|image|>"],
        "audio_token_id": ids["<|audio|>"],
        "video_token_id": ids["<|video|>"],
        "boi_token_id": ids["<|image>"],
        "eoi_token_id": ids["<image|>"],
        "vision_soft_tokens_per_image": 16,
    }


GEMMA3 = Family(
    _gemma3,
    chat("<start_of_image>", start="{{ bos_token }}"),
    added=("<bos>", "<start_of_image>", "<end_of_image>", "<image_soft_token>"),
    named={
        "boi_token": "<start_of_image>",
        "eoi_token": "<end_of_image>",
        "image_token": "<image_soft_token>",
    },
    bos="<bos>",
    preprocessor=image_processor(
        "Gemma3ImageProcessor",
        size={"height": 64, "width": 64},
        processor_class="Gemma3Processor",
    ),
    processor={"processor_class": "Gemma3Processor", "image_seq_length": 16},
    embedding=0.03,
)
GEMMA4 = Family(
    _gemma4,
    chat("<|image|>", start="{{ bos_token }}"),
    added=("<bos>", "<|image>", "<image|>", "<|image|>", "<|audio|>", "<|video|>"),
    named={
        "boi_token": "<|image>",
        "eoi_token": "<image|>",
        "image_token": "<|image|>",
        "audio_token": "<|audio|>",
        "video_token": "<|video|>",
    },
    bos="<bos>",
    processor={
        "processor_class": "Gemma4Processor",
        "image_seq_length": 16,
        "image_processor": {
            "image_processor_type": "Gemma4ImageProcessor",
            "patch_size": 8,
            "max_soft_tokens": 16,
            "pooling_kernel_size": 2,
        },
    },
    embedding=0.03,
)
