"""Which adapter serves which ``model_type``."""

from __future__ import annotations

from typing import Any

from mlxq_schemas.errors import ModelNotLoaded
from mlxq_worker.models.adapter import Adapter
from mlxq_worker.models.device import blame
from mlxq_worker.models.gemma4 import Gemma4Adapter
from mlxq_worker.models.generic import GenericAdapter
from mlxq_worker.models.qwen_vl import QwenVLAdapter
from mlxq_worker.models.self_check import self_check
from mlxq_worker.models.tiles import TilesAdapter

_ADAPTERS: dict[str, type[Adapter]] = {
    "gemma3": Adapter,
    "gemma4": Gemma4Adapter,
    "idefics3": TilesAdapter,
    "internvl_chat": TilesAdapter,
    "llama": Adapter,
    "llava": Adapter,
    "pixtral": Adapter,
    "qwen2_5_vl": QwenVLAdapter,
    "qwen2_vl": QwenVLAdapter,
    "qwen3": Adapter,
    "qwen3_5": QwenVLAdapter,
    "qwen3_vl": QwenVLAdapter,
    "smolvlm": TilesAdapter,
}
"""Families whose batches are tested against rows alone."""

_KIN: dict[str, type[Adapter]] = {
    "qwen3_5_moe": QwenVLAdapter,
    "qwen3_vl_moe": QwenVLAdapter,
}
"""Families near to those: served after the self-check, like unknown ones."""


def adapter_for(model: Any, processor: Any = None) -> Adapter:
    """The adapter of a loaded model.

    A family that is not known here is served if it passes the self-check, which needs the
    processor; else this raises :class:`ModelNotLoaded`.
    """
    model_type = str(getattr(model.config, "model_type", None))
    known = _ADAPTERS.get(model_type)
    if known is not None:
        return known(model)
    names = ", ".join(sorted(_ADAPTERS))
    if processor is None:
        raise ModelNotLoaded(
            f"model type {model_type!r} is not known (known: {names}), and cannot be checked "
            "without its processor"
        )
    try:
        adapter = _KIN.get(model_type, GenericAdapter)(model)
        fault = self_check(adapter, processor)
    except Exception as error:  # noqa: BLE001 # a model nobody tried may raise anything
        blame(error)
        fault = f"it raised {type(error).__name__}: {error}"
    else:
        if fault is None:
            return adapter
    raise ModelNotLoaded(
        f"model type {model_type!r} is not known (known: {names}) and fails the self-check: {fault}"
    )
