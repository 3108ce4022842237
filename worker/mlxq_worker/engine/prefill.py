"""Bring a prompt into a row's own cache, slice by slice."""

from __future__ import annotations

import time

import mlx.core as mx

from mlxq_schemas.errors import InvalidJob
from mlxq_worker.engine.row import Filling, Row
from mlxq_worker.models.adapter import Adapter


class Prefill:
    """Feeds all tokens but the last, which the row's first decode step feeds.

    So the language-model head never runs in prefill, and the first token is chosen by the same
    path as every other.
    """

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter
        self.images = 0
        self.vision_seconds = 0.0

    def advance(self, row: Row, budget: int) -> int:
        """Feed at most ``budget`` tokens; returns how many. Encodes the images on first use."""
        filling = row.filling or self._begin(row)
        prompt, ids, start = len(row.prompt), row.ids, row.fed
        border = prompt if start < prompt else len(ids)
        end = min(start + budget, border, len(ids) - 1)
        if end <= start:
            return 0
        if start < prompt:
            self._adapter.prefill(ids[start:end], start, filling.embedded, filling.cache)
        else:
            self._adapter.prefill_text(ids[start:end], start + row.rope_delta, filling.cache)
        mx.eval([layer.state for layer in filling.cache])
        row.fed = end
        return end - start

    def _begin(self, row: Row) -> Filling:
        if row.prepared is None or row.prompt[-1] in self._adapter.media_tokens:
            raise InvalidJob(f"{row.request_id}: the prompt ends in a medium; put text after it")
        began = row.prefill_began = time.perf_counter()
        embedded = self._adapter.embed(row.prepared)
        mx.eval(embedded.arrays)
        row.rope_delta = embedded.rope_delta
        row.filling = Filling(embedded, self._adapter.make_cache())
        if row.prepared.images:
            self.images += row.prepared.images
            self.vision_seconds += time.perf_counter() - began
        return row.filling

    @staticmethod
    def done(row: Row) -> bool:
        """True when only the last token is left to feed."""
        return row.filling is not None and row.fed == len(row.ids) - 1
