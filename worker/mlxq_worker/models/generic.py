"""Families that no adapter was written for: pass on what the model's own embedding step gives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from mlxq_worker.models.adapter import Adapter, Embedded, to_mlx
from mlxq_worker.models.prepared import Prepared
from mlxq_worker.models.vision import Vision

_NOT_FOR_DECODER = {"inputs_embeds", "attention_mask_4d", "attention_mask", "pixel_values"}

_ALONG = ("mm_token_type_ids", "token_type_ids")
"""Models take these as they are: they must be as long as the tokens they come with."""


class GenericAdapter(Adapter):
    """Feeds a prompt as mlx-vlm's own generation does.

    A family that keeps something about a row on its module, or derives positions in another
    way than from its cache, gives other tokens in a batch: the self-check finds that.
    """

    def encode(
        self,
        prompts: Sequence[Prepared],  # noqa: ARG002 - the interface's
    ) -> Iterator[tuple[list[int], list[Vision]]]:
        """Nothing: only a prompt's own embedding step is known to be right here."""
        return iter(())

    def embed(
        self,
        prepared: Prepared,
        vision: Vision | None = None,  # noqa: ARG002 - the interface's
    ) -> Embedded:
        features = self.features(prepared)
        given = {name: to_mlx(value) for name, value in prepared.arrays.items()}
        whole: dict[str, Any] = {
            name: value
            for name, value in {**given, **features.to_dict()}.items()
            if value is not None and name not in _NOT_FOR_DECODER
        }
        unsplit = 0 if self._may_split(whole) else len(prepared.ids) - 1
        along = {name: whole.pop(name) for name in _ALONG if name in whole}
        return Embedded(features.inputs_embeds, whole=whole, along=along, unsplit=unsplit)

    def _may_split(self, whole: dict[str, Any]) -> bool:
        for module in (self.model, self.language_model):
            policy = getattr(module, "chunked_prefill_policy", None)
            if policy is not None:
                return bool(policy(prefill_kwargs=whole))
        return not getattr(self.language_model, "no_chunked_prefill", False)
