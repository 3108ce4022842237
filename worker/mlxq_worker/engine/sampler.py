"""Choose the next token of every row at once, each by its own parameters."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mlxq_schemas import Sampling
from mlxq_worker.engine.row import Row

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)

COLDEST = 1e-5
"""Temperatures below this are greedy: divided by them, logits would overflow."""

LEAST_REPETITION = 1e-6
"""Repetition penalties below this act as it does, for the same reason."""


def random_keys(
    seeds: npt.NDArray[np.uint64], indices: npt.NDArray[np.uint64]
) -> npt.NDArray[np.uint32]:
    """Random keys [rows, 2] that depend on each row's seed and token index alone (splitmix64).

    So the same request draws the same tokens in any batch, and goes on rightly after a resume.
    """
    with np.errstate(over="ignore"):
        z = seeds + (indices + np.uint64(1)) * _GOLDEN
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return np.stack([z >> np.uint64(32), z & np.uint64(0xFFFFFFFF)], axis=-1).astype(np.uint32)


def _column(rows: Sequence[Row], name: str) -> mx.array:
    values = [getattr(row.request.sampling, name) for row in rows]
    return mx.array(values, dtype=mx.float32)[:, None]


def _penalised(sampling: Sampling) -> bool:
    return (
        sampling.presence_penalty != 0
        or sampling.frequency_penalty != 0
        or sampling.repetition_penalty != 1
    )


class Sampler:
    """Sampling state of the rows of one batch; rebuilt when rows join or leave.

    Only what some row asks for is computed: a batch of greedy rows is one argmax.
    """

    def __init__(self, rows: Sequence[Row], history: Sequence[list[int]], vocab: int) -> None:
        """``history``: each row's generated tokens but the one that is about to be fed."""
        self._vocab = vocab
        samplings = [row.request.sampling for row in rows]
        self._hot = any(s.temperature >= COLDEST for s in samplings)
        self._filtered = any(s.top_k > 0 or s.top_p < 1 for s in samplings)
        self._floored = any(s.min_p > 0 for s in samplings)
        self._penalised = any(_penalised(s) for s in samplings)
        self._bias = self._bias_matrix(samplings) if any(s.logit_bias for s in samplings) else None
        if self._hot:
            self._build_hot(rows)
        if self._penalised:
            self._build_penalties(rows, history)

    def _build_hot(self, rows: Sequence[Row]) -> None:
        self._seeds = np.array([row.seed for row in rows], dtype=np.uint64)
        self._temperature = _column(rows, "temperature")
        self._top_p = _column(rows, "top_p")
        self._min_p = _column(rows, "min_p")
        top_k = [row.request.sampling.top_k for row in rows]
        ranks = [min(k, self._vocab) if k > 0 else self._vocab for k in top_k]
        self._top_k = mx.array(ranks)[:, None]

    def _build_penalties(self, rows: Sequence[Row], history: Sequence[list[int]]) -> None:
        self._presence = _column(rows, "presence_penalty")
        self._frequency = _column(rows, "frequency_penalty")
        self._repetition = mx.maximum(_column(rows, "repetition_penalty"), LEAST_REPETITION)
        counts = np.zeros((len(rows), self._vocab), dtype=np.float32)
        prompt = np.zeros((len(rows), self._vocab), dtype=bool)
        for n, row in enumerate(rows):
            np.add.at(counts[n], [t for t in history[n] if t < self._vocab], 1)
            if row.prepared is not None:
                prompt[n, [t for t in row.prepared.ids if t < self._vocab]] = True
        self._counts, self._prompt = mx.array(counts), mx.array(prompt)

    def _bias_matrix(self, samplings: Sequence[Sampling]) -> mx.array:
        bias = np.zeros((len(samplings), self._vocab), dtype=np.float32)
        for n, sampling in enumerate(samplings):
            for token, value in sampling.logit_bias.items():
                if 0 <= token < self._vocab:
                    bias[n, token] = value
        return mx.array(bias)

    def __call__(
        self,
        logits: mx.array,
        last: mx.array,
        generated: npt.NDArray[np.bool_],
        indices: npt.NDArray[np.uint64],
    ) -> mx.array:
        """Next tokens [rows], lazy.

        ``logits`` [rows, vocab]; ``last`` [rows] are the tokens just fed, ``generated`` [rows]
        says which of these the model generated (and not the prompt); ``indices`` [rows] is the
        number of each row's new token, counted from 0.
        """
        logits = logits.astype(mx.float32)
        if self._bias is not None:
            logits = logits + self._bias
        if self._penalised:
            logits = self._penalise(logits, last, generated)
        greedy = mx.argmax(logits, axis=-1)
        if not self._hot:
            return greedy
        hot = self._temperature >= COLDEST
        # The likeliest is 0, so that no quotient overflows upwards.
        scaled = (logits - mx.max(logits, axis=-1, keepdims=True)) / mx.where(
            hot, self._temperature, 1.0
        )
        keys = mx.array(random_keys(self._seeds, indices))
        drawn = mx.vmap(lambda key, row: mx.random.categorical(row, key=key))(
            keys, self._filter(scaled)
        )
        return mx.where(hot[:, 0], drawn.astype(greedy.dtype), greedy)

    def _penalise(
        self, logits: mx.array, last: mx.array, generated: npt.NDArray[np.bool_]
    ) -> mx.array:
        columns = mx.arange(self._vocab)[None]
        fresh = (columns == last[:, None]) & mx.array(generated.tolist())[:, None]
        self._counts = self._counts + fresh
        seen = self._counts > 0
        repeated = mx.where(logits > 0, logits / self._repetition, logits * self._repetition)
        logits = mx.where(seen | self._prompt, repeated, logits)
        return logits - self._frequency * self._counts - self._presence * seen

    def _filter(self, logits: mx.array) -> mx.array:
        """Cut each row at its top-k rank, top-p mass and min-p share; ties stay in."""
        if self._floored:
            floor = mx.max(logits, axis=-1, keepdims=True) + mx.log(mx.maximum(self._min_p, 1e-38))
            logits = mx.where(logits < mx.where(self._min_p > 0, floor, -mx.inf), -mx.inf, logits)
        if not self._filtered:
            return logits
        ordered = -mx.sort(-logits, axis=-1)
        ranked = mx.arange(self._vocab)[None] < self._top_k
        shares = mx.softmax(mx.where(ranked, ordered, -mx.inf), axis=-1)
        before = mx.cumsum(shares, axis=-1) - shares
        # Rounded sums reach 1 before the last token does.
        within = (before < self._top_p) | (self._top_p >= 1)
        kept = mx.sum(ranked & within, axis=-1, keepdims=True)
        least = mx.take_along_axis(ordered, mx.maximum(kept - 1, 0), axis=-1)
        return mx.where(logits < least, -mx.inf, logits)
