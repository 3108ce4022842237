"""What every output can do."""

from __future__ import annotations

from typing import Literal, Protocol

from mlxq_producer.pipeline.item import Item, Row
from mlxq_producer.pipeline.ledger import Ledger

Existing = Literal["skip", "overwrite", "append"]


class Sink(Protocol):
    """Takes rows. What it holds after a kill is put right by the next :meth:`open`, or, item by
    item, by :meth:`restore`.
    """

    def open(self, ledger: Ledger, existing: Existing) -> None:
        """Begin, or go on. Raises :class:`ConfigError` for a file that is not ours."""
        ...

    def write(self, item: Item, row: Row) -> None:
        """Write a row. Raises :class:`OutputFailed` if only this one cannot be written; it then
        gets the item's failed row instead, which it never refuses.
        """
        ...

    def restore(self, item: Item, row: Row) -> None:
        """A finished item was met again: write what is gone. Raises :class:`OutputFailed`."""
        ...

    def sizes(self) -> dict[str, int]:
        """Bytes in each growing file, which the ledger keeps with the row."""
        ...

    def finish(self, ledger: Ledger) -> None:
        """The run is over, or interrupted: leave the output as the ledger has it."""
        ...
