"""Gemma 4: inputs for every layer, and images whose tokens see each other in both directions."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np

from mlxq_worker.models.adapter import Adapter, Embedded
from mlxq_worker.models.prepared import Prepared
from mlxq_worker.models.vision import Vision

_VISUAL = (1, 2)
"""Values of ``mm_token_type_ids`` for images and videos."""


class Gemma4Adapter(Adapter):
    """Passes per-layer inputs and token types along with each slice.

    Where the model attends to images in both directions, it builds that mask only for a prompt
    fed from its start, so nothing up to the last image token may be split.
    """

    def embed(self, prepared: Prepared, vision: Vision | None = None) -> Embedded:
        along: dict[str, mx.array] = {}
        per_layer = self.features(Prepared(prepared.ids)).per_layer_inputs
        if per_layer is not None:
            along["per_layer_inputs"] = per_layer
        unsplit = self.unsplit(prepared)
        if unsplit:
            along["mm_token_type_ids"] = mx.array(prepared.arrays["mm_token_type_ids"])
        return Embedded(self.spliced(prepared, vision), along=along, unsplit=unsplit)

    def unsplit(self, prepared: Prepared) -> int:
        types: Any = prepared.arrays.get("mm_token_type_ids")
        if types is None or not self._bidirectional:
            return 0
        visual = np.flatnonzero(np.isin(types, _VISUAL))
        return int(visual[-1]) + 1 if visual.size else 0

    @property
    def _bidirectional(self) -> bool:
        config = self.language_model.config
        return getattr(config, "use_bidirectional_attention", None) == "vision"
