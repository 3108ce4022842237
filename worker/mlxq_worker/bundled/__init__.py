"""The small vision-language model that ships inside the worker package."""

from __future__ import annotations

from pathlib import Path

MODEL_NAME = "tiny-qwen3-vl"


def bundled_model_path() -> Path:
    """Return the folder of the shipped model, in the Hugging Face layout."""
    return Path(__file__).resolve().parent / MODEL_NAME
