"""Bring a prompt into a row's own cache, slice by slice."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import mlx.core as mx

from mlxq_schemas.errors import InvalidJob
from mlxq_worker.engine.recall import Recall
from mlxq_worker.engine.row import Filling, Row
from mlxq_worker.models.adapter import Adapter
from mlxq_worker.models.device import blame

PAGE = 256
"""Tokens by which caches grow: the least that a row takes."""

AGED = 8
"""Steps without a slice after which a row goes first."""


class PrefillPlan:
    """Who gets how much of one slice's budget.

    The row with the least left goes first, so that short prompts overtake a long one; but a row
    that got nothing for :data:`AGED` steps goes before these, the oldest of such rows first, so
    that no prompt waits for ever. A crumb of the budget is no slice.
    """

    def __init__(self, rows: Sequence[Row], budget: int) -> None:
        self._left = budget
        self._least = max(1, budget // 4)
        self._rows = sorted(rows, key=_turn)

    def __iter__(self) -> Iterator[tuple[Row, int]]:
        for row in self._rows:
            if self._left >= min(self._least, row.left):
                row.starved = 0
                yield row, self._left
            else:
                row.starved += 1

    def beginning(self) -> list[Row]:
        """Rows with pictures to encode, as far as the budget goes: they begin in this slice."""
        left, rows = self._left, []
        for row in self._rows:
            if left < self._least:
                break
            left -= row.left
            if row.filling is None and row.vision is None and row.prepared and row.prepared.images:
                rows.append(row)
        return rows

    def spent(self, tokens: int) -> None:
        """Count what a row took; a row that took nothing still costs one."""
        self._left -= max(tokens, 1)


def _pictures(row: Row) -> tuple[bytes, ...]:
    """What tells the pictures of a row from those of others."""
    return tuple(row.known.pictures if row.known else ()) or (row.uid.to_bytes(8),)


def _turn(row: Row) -> tuple[bool, int]:
    aged = row.starved >= AGED
    return (not aged, row.uid if aged else row.left)


class Prefill:
    """Feeds all tokens but the last, which the row's first decode step feeds.

    So the language-model head never runs in prefill, and the first token is chosen by the same
    path as every other.
    """

    def __init__(self, adapter: Adapter, recall: Recall) -> None:
        self._adapter = adapter
        self._recall = recall
        self.images = 0
        self.vision_calls = 0
        self.vision_seconds = 0.0

    def encode(self, rows: Sequence[Row], ready: Sequence[Row]) -> None:
        """Encode the pictures of rows that begin together, in as few calls as the family allows;
        those that several rows show, once for all that are ``ready`` to begin.

        A call that fails says nothing of whose picture it was: its rows stay without, and each
        is encoded alone when it begins, where its error is its own.
        """
        showing: dict[tuple[bytes, ...], list[Row]] = {}
        for row in rows:
            showing.setdefault(_pictures(row), []).append(row)
        begun = {row.uid for row in rows}
        for row in ready if rows else ():
            if row.filling is None and row.vision is None and row.uid not in begun:
                showing.get(_pictures(row), []).append(row)
        try:
            self._encode([row for row, *_ in showing.values()])
        except Exception as error:  # a model's own: met again by whoever's it is
            blame(error)
        for row, *others in showing.values():
            if row.vision is not None:
                self._recall.share_vision(row, others)

    def _encode(self, rows: Sequence[Row]) -> None:
        began = time.perf_counter()
        prompts = [row.prepared for row in rows if row.prepared]
        for group, visions in self._adapter.encode(prompts):
            mx.eval([(vision.features, vision.deepstack) for vision in visions])
            self.vision_calls += 1
            for n, vision in zip(group, visions, strict=True):
                rows[n].vision = vision
                self._recall.keep_vision(rows[n])
                self.images += prompts[n].images
        self.vision_seconds += time.perf_counter() - began

    def reach(self, row: Row, budget: int) -> int:
        """To how many tokens a slice of ``budget`` brings a row: never into a part of what the
        model must see at once. Encodes the images on first use."""
        filling = row.filling or self._begin(row)
        prompt, start = len(row.prompt), row.fed
        border = prompt if start < prompt else row.length
        unsplit = filling.embedded.unsplit
        end = min(max(start + budget, unsplit), border, row.length - 1)
        return max(start, self._recall.slice_end(row, start, end, unsplit))

    def feed(self, row: Row, end: int) -> int:
        """Feed the tokens up to what :meth:`reach` said; returns how many."""
        filling, start = row.filling, row.fed
        if filling is None or end <= start:
            return 0
        ids = row.ids
        if start < len(row.prompt):
            self._adapter.prefill(ids[start:end], start, filling.embedded, filling.cache)
        else:
            self._adapter.prefill_text(ids[start:end], start + row.rope_delta, filling.cache)
        # Not waited for: the decode step of the others is queued behind it at once.
        mx.async_eval([layer.state for layer in filling.cache])
        row.fed = end
        self._recall.keep(row, start)
        return end - start

    def _begin(self, row: Row) -> Filling:
        if row.prepared is None or row.prompt[-1] in self._adapter.media_tokens:
            raise InvalidJob(f"{row.request_id}: the prompt ends in a medium; put text after it")
        if row.prefill_began is None:
            row.prefill_began = time.perf_counter()
        self._recall.find(row)
        if row.vision is None and row.prepared.images:
            self._encode([row])
        embedded = self._adapter.embed(row.prepared, row.vision)
        mx.eval(embedded.arrays)
        row.rope_delta = embedded.rope_delta
        cache = self._recall.cache(row, embedded.unsplit)
        row.vision = None
        row.filling = Filling(embedded, cache or self._adapter.make_cache())
        return row.filling

    @staticmethod
    def done(row: Row) -> bool:
        """True when only the last token is left to feed."""
        return row.filling is not None and row.fed == row.length - 1
