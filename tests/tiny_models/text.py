"""Text-only models."""

from __future__ import annotations

from typing import Any

from tiny_models.family import Family, Ids, chat

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}


def _llama(ids: Ids) -> dict[str, Any]:
    return {"model_type": "llama", **SIZES, "vocab_size": len(ids)}


def _qwen3(ids: Ids) -> dict[str, Any]:
    return {"model_type": "qwen3", **SIZES, "vocab_size": len(ids)}


LLAMA = Family(_llama, chat("(image)"), added=("<s>",), bos="<s>")
QWEN3 = Family(_qwen3, chat("(image)"))
