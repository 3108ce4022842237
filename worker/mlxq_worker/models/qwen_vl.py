"""Qwen2-VL to Qwen3.5: positions in time, height and width (mrope)."""

from __future__ import annotations

from typing import Any

import numpy as np

from mlxq_worker.models.adapter import Adapter, Embedded
from mlxq_worker.models.prepared import Prepared


class QwenVLAdapter(Adapter):
    """Passes every row's three-axis positions explicitly.

    Left to itself the module keeps positions and deltas of whichever prompt came last. Qwen3.5
    mixes recurrent layers in; their state is in the cache like keys and values.
    Qwen3-VL adds vision features to early layers too (deepstack): their mask and values go
    along as whole-prompt arguments.
    """

    axes = 3

    def embed(self, prepared: Prepared) -> Embedded:
        features = self.features(prepared)
        if "pixel_values" not in prepared.arrays:
            where = np.arange(len(prepared.ids), dtype=np.int32)[None]
            return Embedded(features.inputs_embeds, self._positions(where)["position_ids"])
        whole: dict[str, Any] = {}
        if getattr(features, "deepstack_visual_embeds", None) is not None:
            whole["visual_pos_masks"] = features.visual_pos_masks
            whole["deepstack_visual_embeds"] = list(features.deepstack_visual_embeds)
        return Embedded(
            features.inputs_embeds,
            features.position_ids,
            int(features.rope_deltas.item()),
            whole,
        )
