"""Qwen2-VL and Qwen3-VL: positions in time, height and width (mrope)."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np

from mlxq_worker.models.adapter import Adapter, Embedded
from mlxq_worker.models.prepared import Prepared


class QwenVLAdapter(Adapter):
    """Passes every row's three-axis positions explicitly.

    Left to itself the module keeps positions and deltas of whichever prompt came last.
    Qwen3-VL adds vision features to early layers too (deepstack): their mask and values go
    along as whole-prompt arguments.
    """

    axes = 3

    def embed(self, prepared: Prepared) -> Embedded:
        ids = mx.array([prepared.ids])
        arrays = {name: mx.array(value) for name, value in prepared.arrays.items()}
        pixels = arrays.pop("pixel_values", None)
        if pixels is None:
            where = np.arange(len(prepared.ids), dtype=np.int32)[None]
            embeds = self.language_model.model.embed_tokens(ids)
            return Embedded(embeds, self._positions(where)["position_ids"])
        features = self.model.get_input_embeddings(ids, pixels, **arrays)
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
