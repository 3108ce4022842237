"""Tiny models with random weights, built from real configs: one of every family."""

from __future__ import annotations

from pathlib import Path

from mlxq_worker.bundled import bundled_model_path
from tiny_models import builder, gemma, llava, qwen, text, tiles
from tiny_models.family import Family, wide
from tiny_models.kin import KIN
from tiny_models.quantise import quantise

__all__ = ["FAMILIES", "TEXT_ONLY", "Family", "build", "build_quantised", "build_wide"]

FAMILIES: dict[str, Family] = {
    "qwen2_vl": qwen.QWEN2_VL,
    "qwen2_5_vl": qwen.QWEN2_5_VL,
    "qwen3_vl": qwen.QWEN3_VL,
    "qwen3_5": qwen.QWEN3_5,
    "gemma3": gemma.GEMMA3,
    "gemma4": gemma.GEMMA4,
    "smolvlm": tiles.SMOLVLM,
    "idefics3": tiles.IDEFICS3,
    "internvl_chat": tiles.INTERNVL_CHAT,
    "llava": llava.LLAVA,
    "pixtral": llava.PIXTRAL,
    "llama": text.LLAMA,
    "qwen3": text.QWEN3,
}

TEXT_ONLY = frozenset({"llama", "qwen3"})


def build_wide(name: str, folder: Path) -> Path:
    """The same family with heads of 32 values: fewer cannot be quantised."""
    return builder.write(folder, wide(FAMILIES[name]))


def build_quantised(name: str, folder: Path, bits: int) -> Path:
    """Family ``name``, or the bundled model, with weights of so many ``bits``, below ``folder``."""
    source = bundled_model_path() if name == "bundled" else build(name, folder / name)
    return quantise(source, folder / f"{name}-{bits}bit", bits)


def build(name: str, folder: Path, seed: int = 0) -> Path:
    """Write the tiny model of family ``name`` to ``folder``."""
    return builder.write(folder, {**FAMILIES, **KIN}[name], seed)
