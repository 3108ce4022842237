"""SmolVLM, Idefics3, InternVL: pictures cut into tiles, all tiles of a prompt in one row."""

from __future__ import annotations

from mlxq_worker.models.adapter import Adapter


class TilesAdapter(Adapter):
    """Pixels are [1, tiles, channels, height, width]: prompts join along the tiles."""

    pictures_axis = 1
