"""Decode batches of rows of like length, and what happens when the step of one of them fails."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count

from mlxq_schemas.errors import GenerationFailed
from mlxq_worker.cache.proof import Proof
from mlxq_worker.engine.batch import DecodeBatch, Step
from mlxq_worker.engine.row import Row
from mlxq_worker.models.adapter import Adapter
from mlxq_worker.models.device import blame
from mlxq_worker.models.footprint import Footprint
from mlxq_worker.models.quantised import Quantisation

SLACK = 4096
"""Padding, in tokens, that is always allowed: below it one batch beats two."""


def most_tokens(lengths: Sequence[int]) -> int:
    """Tokens that caches of rows of these lengths take at most, padding included."""
    if not lengths:
        return 0
    return min(len(lengths) * max(lengths), sum(lengths) + most_padding(lengths))


def most_padding(lengths: Sequence[int]) -> int:
    """Tokens of padding that a batch of rows of these lengths may have."""
    return sum(lengths) // 2 + SLACK


class Cohorts:
    """All decoding rows.

    Rows of a batch are padded to its longest. A row joins the batch where it wastes least, and
    none where padding would exceed half of the tokens themselves (plus :data:`SLACK`): so one
    long row does not make many short ones pay.

    A step that raises says nothing of which row is guilty. Its rows are split in two halves
    that start again apart, until the guilty one is alone; the others go on as if nothing had
    happened, since a restarted row repeats its tokens exactly. What is nobody's fault (the
    device's, Ctrl-C) is raised instead: then :meth:`clear`.
    """

    def __init__(self, adapter: Adapter, proof: Proof, how: Quantisation | None = None) -> None:
        self._adapter = adapter
        self._proof = proof
        self._how = how
        self._batches: list[DecodeBatch] = []
        self._new_suspicion = count(1)
        self._steps: list[Step] = []
        self._again: list[Row] = []

    def __len__(self) -> int:
        return sum(len(batch) for batch in self._batches)

    def __iter__(self) -> Iterator[Row]:
        return (row for batch in self._batches for row in batch.rows)

    @property
    def nbytes(self) -> int:
        """Bytes of all caches, padding and room for growth included."""
        return sum(batch.nbytes for batch in self._batches)

    def growth(self, footprint: Footprint) -> int:
        """Bytes by which the next step enlarges the caches."""
        return sum(batch.growth(footprint) for batch in self._batches)

    def of_kind(self, *, quantised: bool) -> list[Row]:
        """Rows whose keys and values are quantised, or those whose are not."""
        chosen = (batch for batch in self._batches if (batch.how is not None) == quantised)
        return [row for batch in chosen for row in batch.rows]

    @property
    def sizes(self) -> list[int]:
        """Rows of each batch."""
        return [len(batch) for batch in self._batches]

    def join(self, ready: Sequence[Row]) -> None:
        """Add rows whose prompt is in their own cache."""
        chosen: dict[int, tuple[DecodeBatch, list[Row]]] = {}
        for row in ready:
            batch = self._place(row, chosen)
            chosen.setdefault(id(batch), (batch, []))[1].append(row)
        for batch, rows in chosen.values():
            before = batch.rows
            try:
                batch.join(rows)
            except Exception as error:
                blame(error)
                self._take_apart(batch, [*before, *rows], error)

    def _place(self, row: Row, chosen: dict[int, tuple[DecodeBatch, list[Row]]]) -> DecodeBatch:
        best: tuple[int, DecodeBatch] | None = None
        how = self._how if self._how and row.fed >= self._how.start else None
        for batch in self._batches:
            if batch.suspicion != row.suspicion or batch.how != how:
                continue
            joining = chosen.get(id(batch), (batch, []))[1]
            lengths = [other.fed for other in (*batch.rows, *joining)] + [row.fed]
            padding = len(lengths) * max(lengths) - sum(lengths)
            if padding <= most_padding(lengths) and (best is None or padding < best[0]):
                best = (padding, batch)
        if best is not None:
            return best[1]
        fresh = DecodeBatch(self._adapter, self._proof, row.suspicion, how)
        self._batches.append(fresh)
        return fresh

    def remove(self, leaving: Sequence[Row]) -> None:
        """Drop rows, wherever they are."""
        for batch in list(self._batches):
            try:
                batch.remove(leaving)
            except Exception as error:
                blame(error)
                self._take_apart(batch, batch.rows, error, guilty=False)
        self._batches = [batch for batch in self._batches if batch.rows]

    def step(self) -> None:
        """One token for every row."""
        for batch in list(self._batches):
            rows, ended = batch.rows, set[int]()
            try:
                for step in batch.step():
                    self._steps.append(step)
                    if step.ends:
                        ended.add(step.row.uid)
            except Exception as error:
                blame(error)
                left = [row for row in rows if row.uid not in ended]
                self._take_apart(batch, left, error, guilty=len(rows) == 1)
        self._batches = [batch for batch in self._batches if batch.rows]

    def clear(self) -> list[Row]:
        """Forget all batches; their rows that have not ended."""
        ended = {step.row.uid for step in self._steps if step.ends}
        rows = [row for row in self if row.uid not in ended]
        self._batches = []
        return rows

    def collect(self) -> tuple[list[Step], list[Row]]:
        """What came to light since the last call, and rows that must start again."""
        found = self._steps, self._again
        self._steps, self._again = [], []
        return found

    def _take_apart(
        self, batch: DecodeBatch, rows: Sequence[Row], error: Exception, *, guilty: bool = True
    ) -> None:
        """End a batch that failed. Its ``rows`` start again in two halves.

        One that was alone is to blame, unless ``guilty`` says that others may have been.
        """
        self._batches.remove(batch)
        if guilty and len(rows) == 1:
            why = f"the model raised {type(error).__name__}: {error}"
            self._steps.append(Step(rows[0], error=GenerationFailed(why)))
            return
        middle = (len(rows) + 1) // 2
        for half in (rows[:middle], rows[middle:]):
            suspicion = next(self._new_suspicion)
            for row in half:
                row.restart(suspicion)
                self._again.append(row)
