"""Gemma 4: inputs for every layer, and images whose tokens see each other in both directions."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np

from mlxq_worker.models.adapter import Adapter, Embedded
from mlxq_worker.models.prepared import Prepared

_VISUAL = (1, 2)
"""Values of ``mm_token_type_ids`` for images and videos."""


class Gemma4Adapter(Adapter):
    """Passes per-layer inputs and token types along with each slice.

    Where the model attends to images in both directions, it builds that mask only for a prompt
    fed from its start, so nothing up to the last image token may be split.
    """

    def embed(self, prepared: Prepared) -> Embedded:
        features = self.features(prepared)
        along: dict[str, mx.array] = {}
        if features.per_layer_inputs is not None:
            along["per_layer_inputs"] = features.per_layer_inputs
        types: Any = prepared.arrays.get("mm_token_type_ids")
        unsplit = 0
        if types is not None and self._bidirectional:
            visual = np.flatnonzero(np.isin(types, _VISUAL))
            if visual.size:
                along["mm_token_type_ids"] = mx.array(types)
                unsplit = int(visual[-1]) + 1
        return Embedded(features.inputs_embeds, along=along, unsplit=unsplit)

    @property
    def _bidirectional(self) -> bool:
        config = self.language_model.config
        return getattr(config, "use_bidirectional_attention", None) == "vision"
