"""Libraries whose version a text may depend on."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Final

_LIBRARIES: Final = ("mlx", "mlx-vlm", "mlx-lm", "transformers", "tokenizers", "pillow")
"""Those that choose kernels, run the models, cut text into tokens, and scale pictures."""


def library_versions() -> str:
    """Names and versions, as one line."""
    return ",".join(f"{name}={_version(name)}" for name in _LIBRARIES)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
