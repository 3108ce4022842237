"""The rows that decode together, one token a step each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from mlxq_schemas import TokenLogprob
from mlxq_schemas.errors import GenerationFailed, MlxqError
from mlxq_worker.cache.proof import Proof
from mlxq_worker.engine.logprobs import KnownLogprobs, Logprobs
from mlxq_worker.engine.row import Row
from mlxq_worker.engine.sampler import Sampler
from mlxq_worker.engine.slots import Slots
from mlxq_worker.models import caches
from mlxq_worker.models.adapter import Adapter
from mlxq_worker.models.device import blame
from mlxq_worker.models.footprint import Footprint
from mlxq_worker.models.quantised import Quantisation
from mlxq_worker.models.reading import read

_FAULTS = {
    1: "the model gave NaN or infinite logits",
    2: "a logits processor gave NaN, positive infinity, or no finite logit at all",
}
"""What can be wrong with a row's logits."""


@dataclass(frozen=True)
class Step:
    """One row's outcome of a step: a token and the text it released, or an error."""

    row: Row
    token: int | None = None
    text: str = ""
    logprobs: TokenLogprob | None = None
    error: MlxqError | None = None

    @property
    def ends(self) -> bool:
        """True if the row has nothing more to come."""
        return self.error is not None or self.row.finish_reason is not None


class DecodeBatch:
    """Rows, their merged caches, and the tokens to feed next.

    A step queues its work before it reads the tokens of the step before, so that the device
    never waits for Python. ``suspicion`` is set while the batch is one half of a batch whose step
    failed. ``how``: keys and values are quantised. ``proof`` is told what is queued and read.
    After a method has raised, the batch is good for nothing but its ``rows``.
    """

    def __init__(
        self,
        adapter: Adapter,
        proof: Proof,
        suspicion: int | None = None,
        how: Quantisation | None = None,
    ) -> None:
        self._adapter = adapter
        self._proof = proof
        self._queued = 0
        self.suspicion = suspicion
        self.how = how
        self._slots: Slots | None = None
        self._cache: list[Any] = []
        self._sampler: Sampler | None = None

    def __len__(self) -> int:
        return len(self._slots) if self._slots is not None else 0

    @property
    def rows(self) -> tuple[Row, ...]:
        """In the order of the caches."""
        return self._slots.rows if self._slots is not None else ()

    @property
    def nbytes(self) -> int:
        """Bytes of the caches."""
        return sum(int(cache.nbytes) for cache in self._cache)

    def growth(self, footprint: Footprint) -> int:
        """Bytes by which the next step enlarges the caches: a page, where a layer is full."""
        return footprint.growth(self._cache, len(self))

    def join(self, newcomers: Sequence[Row]) -> None:
        """Add rows whose whole prompt but its last token is in their own caches."""
        if not newcomers:
            return
        merged = caches.merge([row.filling.cache for row in newcomers if row.filling], self.how)
        joining = Slots.of(newcomers)
        if self._slots is None:
            self._cache = merged
            self._put(joining)
        else:
            self._put(self._slots.joined(joining))
            caches.extend(self._cache, merged)
        for row in newcomers:
            row.filling = None

    def remove(self, leaving: Sequence[Row]) -> None:
        """Drop rows and their part of the caches."""
        slots = self._slots
        if slots is None:
            return
        gone = {row.uid for row in leaving}
        places = [n for n, row in enumerate(slots.rows) if row.uid not in gone]
        if len(places) == len(slots):
            return
        if not places:
            self._cache = []
            self._put(None)
            return
        self._put(slots.keep(places))
        indices = mx.array(places)
        for cache in self._cache:
            cache.filter(indices)

    def _put(self, slots: Slots | None) -> None:
        """Other rows, or others' places: what the sampler knows by place is void."""
        self._slots, self._sampler = slots, None

    def step(self) -> Iterator[Step]:
        """Advance every row by a token; gives what the step before brought to light.

        Each outcome is handed over as soon as its row has changed, so that none is lost when a
        later part of the step raises. Take all of them: the last part of the work comes behind.
        """
        slots, queued = self._slots, self._queued
        if slots is None:
            return
        if any(row.request.logits_processors for row in slots.rows):
            # Custom processors see the tokens so far, so these must be read first.
            yield from self._read(slots, queued)
            yield from self._advance()
            return
        if _any_goes_on(slots):
            yield from self._advance()
        yield from self._read(slots, queued)

    def _advance(self) -> Iterator[Step]:
        """Queue one forward pass and the choice of the next tokens; nothing is waited for."""
        slots = self._slots
        if slots is None:
            return
        positions = np.array([row.fed + row.rope_delta for row in slots.rows], dtype=np.int32)
        logits = self._adapter.decode(slots.tokens, positions, self._cache).astype(mx.float32)
        if 0 < self._adapter.vocabulary < logits.shape[-1]:
            # A head with padding may have more ids than can be fed again.
            logits = logits[:, : self._adapter.vocabulary]
        faults = mx.isnan(mx.sum(logits * 0, axis=-1)).astype(mx.uint8)
        own = mx.array(logits)  # before processors, which write into the logits
        logits, faults, failed = _custom(slots.rows, logits, faults)
        if self._sampler is None:
            self._sampler = Sampler(slots.rows, slots.history(), logits.shape[-1])
        known = [len(row.tokens) for row in slots.rows]
        tokens = self._sampler(
            logits,
            slots.tokens,
            np.array(slots.sampled),
            np.array(known, dtype=np.uint64) + np.array(slots.unread, dtype=np.uint64),
        )
        asked = [row.request.logprobs for row in slots.rows if row.request.logprobs is not None]
        logprobs = Logprobs.of(own, tokens, max(asked)) if asked else None
        mx.async_eval(tokens, faults, logprobs.arrays if logprobs else [])
        self._queued = self._proof.step()
        for row in slots.rows:
            row.fed += 1
        self._slots = slots.fed(tokens, faults, logprobs)
        yield from failed
        self.remove([step.row for step in failed])

    def _read(self, slots: Slots, queued: int) -> Iterator[Step]:
        """Wait for tokens that the step ``queued`` chose, add each to its row, and drop the rows
        that end with it."""
        if not any(slots.unread):
            return
        # All is read before any row changes: this waits, and what the device met is raised here.
        tokens, faults = read(slots.tokens, slots.faults)
        logprobs = slots.logprobs.known() if slots.logprobs is not None else None
        self._proof.read(queued)
        if slots is self._slots:
            self._slots = slots.read()
        self.suspicion = None
        here = {row.uid for row in self.rows}
        ended: list[Row] = []
        for n, row in slots.waiting():
            if row.uid not in here:
                continue
            step = _taken(row, int(tokens[n]), int(faults[n]), logprobs, n)
            if step.ends:
                ended.append(row)
            yield step
        self.remove(ended)


def _any_goes_on(slots: Slots) -> bool:
    return any(
        len(row.tokens) + unread < row.max_tokens
        for row, unread in zip(slots.rows, slots.unread, strict=True)
    )


def _custom(
    rows: Sequence[Row], logits: mx.array, faults: mx.array
) -> tuple[mx.array, mx.array, list[Step]]:
    """Run the rows' own logits processors; a row whose processor raises fails alone."""
    failed: list[Step] = []
    for n, row in enumerate(rows):
        if not row.request.logits_processors:
            continue
        own = logits[n]
        try:
            for processor in row.request.logits_processors:
                own = _checked(processor(list(row.tokens), own), own)
        except Exception as error:
            blame(error)
            failed.append(
                Step(row, error=GenerationFailed(f"a logits processor raised: {error!r}"))
            )
            continue
        logits[n] = own
        # Minus infinity bans a token; anything else that is not finite leaves no choice.
        wrong = mx.any(mx.isnan(own) | mx.isposinf(own)) | ~mx.any(mx.isfinite(own))
        faults[n] = mx.where(faults[n] > 0, faults[n], mx.where(wrong, 2, 0).astype(mx.uint8))
    return logits, faults, failed


def _checked(given: Any, asked: mx.array) -> mx.array:
    """What a processor returned, as float32 [vocab]."""
    logits = given if isinstance(given, mx.array) else mx.array(given)
    if logits.shape != asked.shape:
        raise ValueError(f"it returned the shape {logits.shape}, not {asked.shape}")
    return logits.astype(mx.float32)


def _taken(row: Row, token: int, fault: int, logprobs: KnownLogprobs | None, n: int) -> Step:
    """The outcome of row ``n``: its token added, or why that cannot be."""
    if fault:
        return Step(row, error=GenerationFailed(_FAULTS[fault]))
    wanted, known = row.request.logprobs, len(row.tokens)
    try:
        found = None if wanted is None or logprobs is None else logprobs.row(n, token, wanted)
        text = row.take(token)
    except Exception as error:
        del row.tokens[known:]  # what is not reported is not counted
        blame(error)
        return Step(row, error=GenerationFailed(f"token {token} does not decode: {error!r}"))
    return Step(row, token, text, found)
