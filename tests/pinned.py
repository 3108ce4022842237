"""Pins, for this process and all that it starts, what texts depend on besides the model.

On a CPU all types are float32 and products round alike in any batch, so that texts can be compared
word for word, on every machine. To be imported before anything computes.
"""

from __future__ import annotations

import os

os.environ |= {"MLXQ_DEVICE": "cpu", "MLX_ENABLE_TF32": "0"}

from mlxq_worker.models.placement import place

place("cpu")
