"""Log probabilities of chosen tokens, computed only where a row asks for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mlxq_schemas import TokenLogprob
from mlxq_worker.models.reading import read


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

    @property
    def arrays(self) -> list[mx.array]:
        """What to evaluate together with the tokens."""
        return [self.chosen, self.ids, self.values]

    def keep(self, places: mx.array) -> Logprobs:
        """Of these places only."""
        return Logprobs(self.chosen[places], self.ids[places], self.values[places])

    def padded(self, rows: int) -> Logprobs:
        """The same with ``rows`` more behind, which have none yet."""
        behind = [(0, rows), (0, 0)]
        return Logprobs(
            mx.pad(self.chosen, (0, rows)), mx.pad(self.ids, behind), mx.pad(self.values, behind)
        )

    def known(self) -> KnownLogprobs:
        """Waits for the values, all at once."""
        return KnownLogprobs(*read(*self.arrays))


@dataclass(frozen=True)
class KnownLogprobs:
    """The same, read from the device."""

    chosen: npt.NDArray[np.float32]
    ids: npt.NDArray[Any]
    values: npt.NDArray[np.float32]

    def row(self, n: int, token: int, top: int) -> TokenLogprob:
        """Row ``n``'s token with its ``top`` likeliest alternatives, none that cannot come."""
        pairs = zip(self.ids[n, :top].tolist(), self.values[n, :top].tolist(), strict=True)
        likeliest = {token: value for token, value in pairs if value > -np.inf}
        return TokenLogprob(id=token, logprob=float(self.chosen[n]), top=likeliest)
