"""Which adapter serves which ``model_type``."""

from __future__ import annotations

from typing import Any

from mlxq_schemas.errors import ModelNotLoaded
from mlxq_worker.models.adapter import Adapter
from mlxq_worker.models.qwen_vl import QwenVLAdapter

_ADAPTERS: dict[str, type[Adapter]] = {
    "qwen2_vl": QwenVLAdapter,
    "qwen3_vl": QwenVLAdapter,
}


def adapter_for(model: Any) -> Adapter:
    """The adapter of a loaded model; raises :class:`ModelNotLoaded` for an unknown family."""
    model_type = getattr(model.config, "model_type", None)
    adapter = _ADAPTERS.get(str(model_type))
    if adapter is None:
        known = ", ".join(sorted(_ADAPTERS))
        raise ModelNotLoaded(f"model type {model_type!r} is not served yet; known: {known}")
    return adapter(model)
