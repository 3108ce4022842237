"""What a decode batch keeps by position, in one structure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import mlx.core as mx

from mlxq_worker.engine.logprobs import Logprobs
from mlxq_worker.engine.row import Row


@dataclass(frozen=True)
class Slots:
    """Rows in the order of their caches, and what belongs to each: never changed in part.

    ``tokens`` [rows] uint32 are fed next. ``sampled``: the model generated that token (else it
    is the last of those known before); ``unread``: and it is not yet known here. ``faults``
    [rows] uint8 and ``logprobs`` came with the tokens: what was wrong with the logits (0:
    nothing), and the log probabilities, if any row asked.
    """

    rows: tuple[Row, ...]
    tokens: mx.array
    faults: mx.array
    sampled: tuple[bool, ...]
    unread: tuple[bool, ...]
    logprobs: Logprobs | None = None

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Slots:
        """Rows that begin: each feeds its last token."""
        no = (False,) * len(rows)
        last = mx.array([row.ids[-1] for row in rows], dtype=mx.uint32)
        return cls(tuple(rows), last, mx.zeros(len(rows), dtype=mx.uint8), no, no)

    def __len__(self) -> int:
        return len(self.rows)

    def keep(self, places: Sequence[int]) -> Slots:
        """These places only, in this order."""
        where = mx.array(list(places), dtype=mx.int32)
        return Slots(
            tuple(self.rows[n] for n in places),
            self.tokens[where],
            self.faults[where],
            tuple(self.sampled[n] for n in places),
            tuple(self.unread[n] for n in places),
            self.logprobs.keep(where) if self.logprobs is not None else None,
        )

    def joined(self, others: Slots) -> Slots:
        """These, and ``others``, who begin, behind them."""
        return Slots(
            self.rows + others.rows,
            mx.concatenate([self.tokens, others.tokens]),
            mx.concatenate([self.faults, others.faults]),
            self.sampled + others.sampled,
            self.unread + others.unread,
            self.logprobs.padded(len(others)) if self.logprobs is not None else None,
        )

    def fed(self, tokens: mx.array, faults: mx.array, logprobs: Logprobs | None) -> Slots:
        """After a step: the tokens that it chose are to be fed, and are not yet read."""
        yes = (True,) * len(self)
        return Slots(self.rows, tokens, faults, yes, yes, logprobs)

    def read(self) -> Slots:
        """The same, with all tokens known."""
        no = (False,) * len(self)
        return Slots(self.rows, self.tokens, self.faults, self.sampled, no, self.logprobs)

    def history(self) -> list[list[int]]:
        """Each row's generated tokens but the one that is to be fed."""
        known = zip(self.rows, self.sampled, self.unread, strict=True)
        return [
            row.tokens[:-1] if sampled and not unread else row.tokens
            for row, sampled, unread in known
        ]

    def waiting(self) -> Iterator[tuple[int, Row]]:
        """Places and rows whose token is not yet read."""
        return (
            (n, row)
            for n, (row, unread) in enumerate(zip(self.rows, self.unread, strict=True))
            if unread
        )
