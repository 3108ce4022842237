"""The rows that decode together, one token a step each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from mlxq_schemas import TokenLogprob
from mlxq_schemas.errors import GenerationFailed, MlxqError
from mlxq_worker.engine.logprobs import Logprobs
from mlxq_worker.engine.row import Row
from mlxq_worker.engine.sampler import Sampler
from mlxq_worker.models import caches
from mlxq_worker.models.adapter import Adapter
from mlxq_worker.models.quantised import Quantisation


@dataclass(frozen=True)
class Step:
    """One row's outcome of a step: a token and the text it released, or an error."""

    row: Row
    token: int | None = None
    text: str = ""
    logprobs: TokenLogprob | None = None
    error: MlxqError | None = None


class DecodeBatch:
    """Rows, their merged caches, and the tokens to feed next.

    A step queues its work before it reads the tokens of the step before, so that the device
    never waits for Python. ``_pending`` [rows] are the tokens to feed: where ``_sampled`` is
    True the model generated that token (else it is the last token of the row's prompt), and
    where ``_unread`` is True it is not yet known here. ``suspicion`` is set while the batch is
    one half of a batch whose step failed. ``how``: keys and values are quantised.
    """

    def __init__(
        self, adapter: Adapter, suspicion: int | None = None, how: Quantisation | None = None
    ) -> None:
        self._adapter = adapter
        self.suspicion = suspicion
        self.how = how
        self.rows: list[Row] = []
        self._cache: list[Any] = []
        self._pending: mx.array | None = None
        self._broken: mx.array | None = None
        self._logprobs: Logprobs | None = None
        self._sampled: list[bool] = []
        self._unread: list[bool] = []
        self._sampler: Sampler | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def nbytes(self) -> int:
        """Bytes of the caches."""
        return sum(int(cache.nbytes) for cache in self._cache)

    @property
    def growth(self) -> int:
        """Bytes by which the next step enlarges the caches: a page, where a layer is full."""
        return sum(caches.growth(cache) for cache in self._cache)

    def join(self, newcomers: Sequence[Row]) -> None:
        """Add rows whose whole prompt but its last token is in their own caches."""
        if not newcomers:
            return
        merged = caches.merge([row.filling.cache for row in newcomers if row.filling], self.how)
        if self.rows:
            caches.extend(self._cache, merged)
        else:
            self._cache = merged
        tokens = mx.array([row.ids[-1] for row in newcomers], dtype=mx.uint32)
        healthy = mx.zeros(len(newcomers), dtype=mx.bool_)
        if self._pending is None or self._broken is None:
            self._pending, self._broken = tokens, healthy
        else:
            self._pending = mx.concatenate([self._pending, tokens])
            self._broken = mx.concatenate([self._broken, healthy])
        for row in newcomers:
            row.filling = None
        self.rows += newcomers
        self._sampled += [False] * len(newcomers)
        self._unread += [False] * len(newcomers)
        self._sampler = None

    def remove(self, leaving: Sequence[Row]) -> None:
        """Drop rows and their part of the caches."""
        gone = {row.uid for row in leaving}
        keep = [n for n, row in enumerate(self.rows) if row.uid not in gone]
        if len(keep) == len(self.rows):
            return
        self.rows = [self.rows[n] for n in keep]
        self._sampled = [self._sampled[n] for n in keep]
        self._unread = [self._unread[n] for n in keep]
        self._sampler = None
        if not keep or self._pending is None or self._broken is None:
            self._cache, self._pending, self._broken = [], None, None
            return
        indices = mx.array(keep)
        self._pending, self._broken = self._pending[indices], self._broken[indices]
        if self._logprobs is not None:
            self._logprobs = self._logprobs.filter(indices)
        for cache in self._cache:
            cache.filter(indices)

    def step(self) -> list[Step]:
        """Advance every row by a token; returns what the step before brought to light."""
        if any(row.request.logits_processors for row in self.rows):
            # Custom processors see the tokens so far, so these must be read first.
            return self._read(self._snapshot()) + self._advance()
        before = self._snapshot()
        failed = self._advance() if self._any_goes_on() else []
        return failed + self._read(before)

    def _snapshot(self) -> _Sampled:
        unread = [
            row if unread else None for row, unread in zip(self.rows, self._unread, strict=True)
        ]
        return _Sampled(self._pending, self._broken, unread, self._logprobs)

    def _any_goes_on(self) -> bool:
        return any(
            len(row.tokens) + unread < row.max_tokens
            for row, unread in zip(self.rows, self._unread, strict=True)
        )

    def _advance(self) -> list[Step]:
        """Queue one forward pass and the choice of the next tokens; nothing is waited for."""
        if not self.rows or self._pending is None:
            return []
        positions = np.array([row.fed + row.rope_delta for row in self.rows], dtype=np.int32)
        logits = self._adapter.decode(self._pending, positions, self._cache)
        broken = mx.isnan(mx.sum(logits * 0, axis=-1))
        own = mx.array(logits)  # before processors, which write into the logits
        logits, failed = self._custom(logits)
        if self._sampler is None:
            self._sampler = self._make_sampler(logits.shape[-1])
        known = [len(row.tokens) for row in self.rows]
        tokens = self._sampler(
            logits,
            self._pending,
            np.array(self._sampled),
            np.array(known, dtype=np.uint64) + np.array(self._unread, dtype=np.uint64),
        )
        asked = [row.request.logprobs for row in self.rows if row.request.logprobs is not None]
        self._logprobs = Logprobs.of(own, tokens, max(asked)) if asked else None
        mx.async_eval(tokens, broken, self._logprobs.arrays if self._logprobs else [])
        for row in self.rows:
            row.fed += 1
        self._pending, self._broken = tokens, broken
        self._sampled = [True] * len(self.rows)
        self._unread = [True] * len(self.rows)
        self.remove([step.row for step in failed])
        return failed

    def _make_sampler(self, vocab: int) -> Sampler:
        """A sampler whose token counts stop short of the pending tokens: a step adds these."""
        read = zip(self.rows, self._sampled, self._unread, strict=True)
        history = [
            row.tokens[:-1] if sampled and not unread else row.tokens
            for row, sampled, unread in read
        ]
        return Sampler(self.rows, history, vocab)

    def _custom(self, logits: mx.array) -> tuple[mx.array, list[Step]]:
        """Run the rows' own logits processors; a row whose processor raises fails alone."""
        failed: list[Step] = []
        for n, row in enumerate(self.rows):
            try:
                for processor in row.request.logits_processors:
                    logits[n] = processor(row.tokens, logits[n])
            except Exception as error:
                failed.append(
                    Step(row, error=GenerationFailed(f"a logits processor raised: {error!r}"))
                )
        return logits, failed

    def _read(self, sampled: _Sampled) -> list[Step]:
        """Wait for sampled tokens, add each to its row, and drop the rows that end with it."""
        if sampled.tokens is None or sampled.broken is None or not any(sampled.rows):
            return []
        if sampled.tokens is self._pending:
            self._unread = [False] * len(self.rows)
        tokens, broken = np.array(sampled.tokens), np.array(sampled.broken)
        self.suspicion = None
        here = {row.uid for row in self.rows}
        steps: list[Step] = []
        for n, row in enumerate(sampled.rows):
            if row is not None and row.uid in here:
                steps.append(_taken(row, int(tokens[n]), bool(broken[n]), sampled.logprobs, n))
        self.remove(
            [s.row for s in steps if s.error is not None or s.row.finish_reason is not None]
        )
        return steps


@dataclass(frozen=True)
class _Sampled:
    """Tokens on the device, and the row that each belongs to (None: known already)."""

    tokens: mx.array | None
    broken: mx.array | None
    rows: list[Row | None]
    logprobs: Logprobs | None


def _taken(row: Row, token: int, bad: bool, logprobs: Logprobs | None, n: int) -> Step:
    """The outcome of row ``n``: its token added, or why that cannot be."""
    if bad:
        return Step(row, error=GenerationFailed("the model gave NaN or infinite logits"))
    try:
        text = row.take(token)
    except Exception as error:
        return Step(row, error=GenerationFailed(f"token {token} does not decode: {error!r}"))
    wanted = row.request.logprobs
    found = None if wanted is None or logprobs is None else logprobs.row(n, token, wanted)
    return Step(row, token, text, found)
