"""SmolVLM, Idefics3 and InternVL: pictures cut into tiles."""

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
    "image_size": 32,
}
_GRID = tuple(f"<row_{row}_col_{column}>" for row in range(1, 4) for column in range(1, 4))
_IDEFICS_TOKENS = (
    "<image>",
    "<fake_token_around_image>",
    "<global-img>",
    "<end_of_utterance>",
    *_GRID,
)


def _idefics(model_type: str, text: str, vision: str) -> Any:
    def config(ids: Ids) -> dict[str, Any]:
        return {
            "model_type": model_type,
            "text_config": {**_TEXT, "model_type": text, "vocab_size": len(ids)},
            "vision_config": {**_VISION, "model_type": vision},
            "scale_factor": 2,
            "vocab_size": len(ids),
            "image_token_id": ids["<image>"],
        }

    return config


def _tiled(kind: str, processor: str) -> dict[str, Any]:
    return image_processor(
        kind,
        size={"longest_edge": 64},
        max_image_size={"longest_edge": 32},
        do_image_splitting=True,
        do_pad=True,
        processor_class=processor,
    )


def _internvl(ids: Ids) -> dict[str, Any]:
    text = {"model_type": "qwen2", "vocab_size": len(ids), "tie_word_embeddings": False}
    return {
        "model_type": "internvl_chat",
        "llm_config": _TEXT | text,
        "vision_config": _VISION | {"model_type": "intern_vit_6b", "drop_path_rate": 0.0},
        "downsample_ratio": 0.5,
        "max_dynamic_patch": 4,
        "image_token_index": ids["<IMG_CONTEXT>"],
        "vocab_size": len(ids),
    }


SMOLVLM = Family(
    _idefics("smolvlm", "llama", "smolvlm_vision"),
    chat("<image>"),
    added=_IDEFICS_TOKENS,
    preprocessor=_tiled("SmolVLMImageProcessor", "SmolVLMProcessor"),
    processor={"processor_class": "SmolVLMProcessor", "image_seq_len": 4},
)
IDEFICS3 = Family(
    _idefics("idefics3", "llama", "idefics3_vision"),
    chat("<image>"),
    added=_IDEFICS_TOKENS,
    preprocessor=_tiled("Idefics3ImageProcessor", "Idefics3Processor"),
    processor={"processor_class": "Idefics3Processor", "image_seq_len": 4},
)
INTERNVL_CHAT = Family(
    _internvl,
    chat("<image>\\n"),
    added=("<img>", "</img>", "<IMG_CONTEXT>"),
)
