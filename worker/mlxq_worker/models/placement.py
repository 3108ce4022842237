"""Where models compute, and how exactly they multiply there."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection
from typing import Final, Literal

import mlx.core as mx

from mlxq_schemas.errors import ConfigError

log = logging.getLogger(__name__)

DeviceName = Literal["auto", "cpu", "gpu"]
TF32_VARIABLE: Final = "MLX_ENABLE_TF32"
FLOAT32: Final = "mlx.core.float32"


def place(device: DeviceName) -> None:
    """Compute on ``device`` from now on, in all threads; "auto" leaves MLX's own choice.

    Raises :class:`ConfigError` for one that MLX does not find here.
    """
    if device == "auto":
        return
    chosen = mx.Device(getattr(mx, device))
    if not mx.is_available(chosen):
        raise ConfigError(f"MLX finds no {device} on this machine: give --device auto or cpu")
    mx.set_default_device(chosen)


def on_cpu() -> bool:
    """Whether models compute on the CPU."""
    return mx.default_device() == mx.Device(mx.cpu)


def rounding(types: Collection[str]) -> tuple[str, ...]:
    """What besides the ``types`` of weights tells how exactly they multiply, as words; warns of it.

    A text that was made with it is not that of the same model without.
    """
    on = os.environ.get(TF32_VARIABLE, "1").strip() not in {"", "0"}
    if not on or on_cpu() or FLOAT32 not in types:
        return ()
    log.warning(
        "%s is on: products of several float32 rows are rounded to TF32, so texts may depend on "
        "what else is in the batch; unset it for exact ones",
        TF32_VARIABLE,
    )
    return ("tf32",)
