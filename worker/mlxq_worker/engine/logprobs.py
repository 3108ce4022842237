"""Log probabilities of chosen tokens, computed only where a row asks for them."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from mlxq_schemas import TokenLogprob


@dataclass(frozen=True)
class Logprobs:
    """Of one step: ``chosen`` [rows], and the likeliest ``ids`` and ``values`` [rows, top].

    They are of the model's own distribution, in nats: before logits processors, bias, penalties,
    temperature and filters.
    """

    chosen: mx.array
    ids: mx.array
    values: mx.array

    @classmethod
    def of(cls, logits: mx.array, tokens: mx.array, top: int) -> Logprobs:
        """Lazy, from ``logits`` [rows, vocab] and the chosen ``tokens`` [rows]."""
        logits = logits.astype(mx.float32)
        logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        chosen = mx.take_along_axis(logprobs, tokens[:, None], axis=-1)[:, 0]
        ids = mx.argsort(-logprobs, axis=-1)[:, :top]
        return cls(chosen, ids, mx.take_along_axis(logprobs, ids, axis=-1))

    def filter(self, indices: mx.array) -> Logprobs:
        """Those of the rows ``indices``."""
        return Logprobs(self.chosen[indices], self.ids[indices], self.values[indices])

    @property
    def arrays(self) -> list[mx.array]:
        """What to evaluate together with the tokens."""
        return [self.chosen, self.ids, self.values]

    def row(self, n: int, token: int, top: int) -> TokenLogprob:
        """Row ``n``'s token with its ``top`` likeliest alternatives."""
        ids, values = np.array(self.ids[n]), np.array(self.values[n])
        likeliest = {int(i): float(v) for i, v in zip(ids[:top], values[:top], strict=True)}
        return TokenLogprob(id=token, logprob=float(np.array(self.chosen[n])), top=likeliest)
