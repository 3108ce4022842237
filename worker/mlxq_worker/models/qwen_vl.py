"""Qwen2-VL to Qwen3.5: positions in time, height and width (mrope)."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np

from mlxq_worker.models.adapter import Adapter, Embedded, to_mlx
from mlxq_worker.models.prepared import Prepared
from mlxq_worker.models.vision import Vision


class QwenVLAdapter(Adapter):
    """Passes every row's three-axis positions explicitly.

    Left to itself the module keeps positions and deltas of whichever prompt came last. Qwen3.5
    mixes recurrent layers in; their state is in the cache like keys and values.
    Qwen3-VL adds vision features to early layers too (deepstack): their mask and values go
    along as whole-prompt arguments.
    """

    axes = 3

    def embed(self, prepared: Prepared, vision: Vision | None = None) -> Embedded:
        vision = vision or self.seen(prepared)
        embeds = self.language_model.model.embed_tokens(mx.array([prepared.ids]))
        if vision is None:
            where = np.arange(len(prepared.ids), dtype=np.int32)[None]
            return Embedded(embeds, self._positions(where)["position_ids"])
        places = self.media_places(prepared.ids)
        if vision.features is not None:
            embeds[0, places] = vision.features.astype(embeds.dtype)
        ids = mx.array([prepared.ids])
        grid = to_mlx(prepared.arrays["image_grid_thw"])
        positions, delta = self.language_model.get_rope_index(ids, grid, None, mx.ones_like(ids))
        whole: dict[str, Any] = {}
        if vision.deepstack:
            mask = mx.zeros(ids.shape, dtype=mx.bool_)
            mask[0, places] = True
            whole["visual_pos_masks"] = mask
            whole["deepstack_visual_embeds"] = list(vision.deepstack)
        return Embedded(embeds, positions, int(delta.item()), whole)
