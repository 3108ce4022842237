"""Families that no adapter was written for, or only for near relations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tiny_models.family import Family, Ids, chat
from tiny_models.qwen import QWEN3_5, QWEN3_VL
from tiny_models.text import SIZES

_EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
}


def _with_experts(family: Family, name: str) -> Family:
    def config(ids: Ids) -> dict[str, Any]:
        whole = family.config(ids)
        whole["model_type"] = whole["vision_config"]["model_type"] = name
        whole["text_config"] |= {**_EXPERTS, "model_type": name}
        return whole

    return replace(family, config=config)


def _text(name: str, embedding: float = 1.0, **settings: Any) -> Family:
    def config(ids: Ids) -> dict[str, Any]:
        return {"model_type": name, **SIZES, "vocab_size": len(ids), **settings}

    return Family(config, chat("(image)"), embedding=embedding)


_ALTERNATING = ["sliding_attention", "full_attention"]

KIN: dict[str, Family] = {
    "qwen3_vl_moe": _with_experts(QWEN3_VL, "qwen3_vl_moe"),
    "qwen3_5_moe": _with_experts(QWEN3_5, "qwen3_5_moe"),
    "mistral": _text("mistral"),
    "gemma3_text": _text(
        "gemma3_text",
        embedding=0.03,
        sliding_window=24,
        sliding_window_pattern=2,
        query_pre_attn_scalar=16,
    ),
    "gpt_oss": _text(
        "gpt_oss",
        sliding_window=24,
        layer_types=_ALTERNATING,
        num_local_experts=4,
        num_experts_per_tok=2,
    ),
    "lfm2": _text(
        "lfm2",
        norm_eps=1e-6,
        conv_bias=False,
        conv_L_cache=3,
        block_dim=64,
        block_ff_dim=128,
        block_multiple_of=8,
        block_ffn_dim_multiplier=1.0,
        block_auto_adjust_ff_dim=False,
        full_attn_idxs=[1],
        layer_types=["conv", "full_attention"],
    ),
}
