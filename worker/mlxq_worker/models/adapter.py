"""How the engine talks to a model, whatever its family.

A row is prefilled alone (batch of one, unbatched caches) and decoded together with others
(batched caches). Everything about a row's positions is passed with each call; nothing is left
on the module, where the next row would find it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from mlx import nn
from mlx_vlm.models.cache import make_prompt_cache

from mlxq_worker.models.prepared import Array, Prepared
from mlxq_worker.models.vision import Vision, alike, join, split
from mlxq_worker.models.windows import leave_out_empty_windows


@dataclass(frozen=True)
class Embedded:
    """A prompt as the language model takes it.

    ``embeds`` [1, tokens, hidden]; ``positions`` [axes, 1, tokens] int32 or None where the
    model counts by itself; ``whole`` are keyword arguments about the whole prompt, which the
    model slices by cache offset; ``along`` are those that are sliced here, [1, tokens, ...]. The
    token after the prompt has position ``tokens + rope_delta``. The first ``unsplit`` tokens see
    each other in both directions: they must be fed in one slice.
    """

    embeds: mx.array
    positions: mx.array | None = None
    rope_delta: int = 0
    whole: dict[str, Any] = field(default_factory=dict)
    along: dict[str, mx.array] = field(default_factory=dict)
    unsplit: int = 0

    @property
    def arrays(self) -> list[Any]:
        """What to evaluate before the first slice, so that no graph outlives this step."""
        return [self.embeds, self.positions, self.whole, self.along]


class Adapter:
    """The plain case: a text model behind ``model.language_model``, positions by cache offset."""

    axes = 0
    """Rows of a position array: 0 where the model derives positions from its cache."""

    pictures_axis = 0
    """Along which the processor stacks a prompt's pictures."""

    def __init__(self, model: Any) -> None:
        leave_out_empty_windows(model)
        self.model = model
        self.language_model: Any = getattr(model, "language_model", model)
        kinds, ends = ("image", "video", "audio"), ("id", "index")
        names = (f"{kind}_token_{end}" for kind in kinds for end in ends)
        ids = (getattr(model.config, name, None) for name in names)
        self.media_tokens = frozenset(token for token in ids if isinstance(token, int))
        """Ids that stand for a piece of a medium."""
        self.vocabulary = _vocabulary(self.language_model, model.config)
        """Rows of the embedding: ids from 0 up to this can be fed. 0: not known."""

    def make_cache(self) -> list[Any]:
        """An empty unbatched cache, one entry a layer."""
        return list(make_prompt_cache(self.language_model))

    def encode(self, prompts: Sequence[Prepared]) -> Iterator[tuple[list[int], list[Vision]]]:
        """Encode the pictures of several prompts, call by call of the vision encoder.

        Yields the indices of prompts, and what each got. Lazy: evaluate it before more is fed.
        """
        for group in alike(prompts, self.pictures_axis):
            members = [prompts[n] for n in group]
            joined = join(members, self.pictures_axis)
            features = self.features(joined)
            vision = Vision(
                features.inputs_embeds[0][self.media_places(joined.ids)],
                tuple(getattr(features, "deepstack_visual_embeds", None) or ()),
            )
            yield group, split(vision, [len(self.media_places(p.ids)) for p in members])

    def unsplit(self, prepared: Prepared) -> int:  # noqa: ARG002
        """How many tokens from the front must be fed in one slice."""
        return 0

    def media_places(self, ids: Sequence[int]) -> mx.array:
        """Indices of the tokens that stand for a piece of a medium."""
        return mx.array([n for n, token in enumerate(ids) if token in self.media_tokens])

    def embed(self, prepared: Prepared, vision: Vision | None = None) -> Embedded:
        """Embeddings of the prompt; pictures are encoded here unless ``vision`` is given.

        No side effect on the module.
        """
        return Embedded(self.spliced(prepared, vision))

    def spliced(self, prepared: Prepared, vision: Vision | None) -> mx.array:
        """Embeddings [1, tokens, hidden] of text and pictures."""
        embeds = self.features(Prepared(prepared.ids)).inputs_embeds
        vision = vision or self.seen(prepared)
        if vision is not None and vision.features is not None:
            embeds[0, self.media_places(prepared.ids)] = vision.features.astype(embeds.dtype)
        return embeds

    def seen(self, prepared: Prepared) -> Vision | None:
        """The pictures of one prompt, encoded alone; None if it has none."""
        if not prepared.images:
            return None
        [(_, [vision])] = self.encode([prepared])
        return vision

    def features(self, prepared: Prepared) -> Any:
        """What the model's own embedding step gives for one prompt without padding."""
        ids = mx.array([prepared.ids])
        arrays = {name: to_mlx(value) for name, value in prepared.arrays.items()}
        pixels = arrays.pop("pixel_values", None)
        return self.model.get_input_embeddings(ids, pixels, mask=mx.ones_like(ids), **arrays)

    def prefill(
        self, tokens: Sequence[int], start: int, embedded: Embedded, cache: list[Any]
    ) -> None:
        """Feed ``tokens``, which stand at ``start`` of the prompt, into an unbatched cache.

        Lazy: the caller evaluates the cache. Logits are never asked for, so the head is free.
        """
        self.feed(tokens, start, embedded, cache)

    def feed(
        self, tokens: Sequence[int], start: int, embedded: Embedded, cache: list[Any]
    ) -> mx.array:
        """The same; gives the lazy logits [1, tokens, vocab]."""
        end = start + len(tokens)
        extra = dict(embedded.whole)
        for name, value in embedded.along.items():
            extra[name] = value[:, start:end]
        if embedded.positions is not None:
            extra["position_ids"] = embedded.positions[..., start:end]
        embeds = embedded.embeds[:, start:end]
        return self.language_model(
            mx.array([tokens]), inputs_embeds=embeds, cache=cache, **extra
        ).logits

    def prefill_text(self, tokens: Sequence[int], position: int, cache: list[Any]) -> None:
        """Feed generated tokens of an earlier attempt, the first at ``position``."""
        where = np.arange(position, position + len(tokens), dtype=np.int32)[None]
        self.language_model(mx.array([tokens]), cache=cache, **self._positions(where))

    def decode(
        self, tokens: mx.array, positions: npt.NDArray[np.int32], cache: list[Any]
    ) -> mx.array:
        """One step: ``tokens`` [rows] at ``positions`` [rows] give logits [rows, vocab]."""
        extra = self._positions(positions[:, None])
        return self.language_model(tokens[:, None], cache=cache, **extra).logits[:, -1]

    def _positions(self, positions: npt.NDArray[np.int32]) -> dict[str, mx.array]:
        if not self.axes:
            return {}
        return {"position_ids": mx.array(np.broadcast_to(positions, (self.axes, *positions.shape)))}


_EMBEDDINGS = frozenset({"embed_tokens", "embed_in", "wte", "tok_embeddings", "word_embeddings"})
"""What token embeddings are called."""


def _vocabulary(language_model: Any, config: Any) -> int:
    """By the weights themselves: a config may say more than there is."""
    modules = language_model.named_modules() if isinstance(language_model, nn.Module) else ()
    sizes = [
        int(module.weight.shape[0])
        for name, module in modules
        if name.rsplit(".", 1)[-1] in _EMBEDDINGS
        and isinstance(module, (nn.Embedding, nn.QuantizedEmbedding))
    ]
    if sizes:
        return min(sizes)
    inner = getattr(config, "text_config", None)
    found = (getattr(part, "vocab_size", None) for part in (inner, config))
    return next((size for size in found if isinstance(size, int)), 0)


def to_mlx(value: Array | list[Array]) -> Any:
    """Pictures of different shapes stay a list."""
    return [mx.array(item) for item in value] if isinstance(value, list) else mx.array(value)
