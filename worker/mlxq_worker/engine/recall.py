"""What the caches know of a row, looked up before anything of it is computed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import CancelledError
from typing import Any

import numpy as np

from mlxq_worker.cache.caches import Caches
from mlxq_worker.cache.chain import BLOCK
from mlxq_worker.cache.loads import Load
from mlxq_worker.cache.prefix import Prefix
from mlxq_worker.cache.proof import Proof
from mlxq_worker.engine.row import Known, Row
from mlxq_worker.models.adapter import Adapter
from mlxq_worker.models.device import blame
from mlxq_worker.models.prepared import Prepared
from mlxq_worker.models.vision import Vision


class Recall:
    """Between rows and caches. A hit that reaches beyond a row's pictures saves their encoding."""

    def __init__(self, caches: Caches, adapter: Adapter) -> None:
        self._caches = caches
        self._adapter = adapter
        self._media_tokens = list(adapter.media_tokens)
        self._next: Row | None = None
        """The first of those that wait for room; none that came later takes it."""
        self.counts: Counter[str] = Counter()

    def ready(self, row: Row) -> bool:
        """Look up a row that has not begun; False while the SSD still brings parts of it."""
        if row.filling is not None:
            return True
        known = row.known = row.known or self._look_up(row)
        if not known.sought:
            self._next = self._next or row
            loads = self._load(known, yielding=self._next is not row)
            if loads is None:
                return False
            known.loads, known.sought = loads, True
            self._next = None if self._next is row else self._next
        if not all(self._caches.arrived(load) for load in known.loads):
            return False
        self._find(row, known)
        return True

    def wait(self, rows: Iterable[Row], seconds: float) -> None:
        """Wait for what the SSD brings for the first of these rows, if there is nothing else to
        do."""
        loads = next((row.known.loads for row in rows if row.known and row.known.loads), ())
        for load in loads:
            try:
                load.future.result(seconds)
            except (TimeoutError, CancelledError):
                return

    @property
    def on_disk(self) -> bool:
        """True if something may come from the SSD."""
        return self._caches.on_disk

    def prefetch(self, row: Row) -> None:
        """Begin to bring what the SSD holds for a row that still waits for its turn."""
        if row.known is not None or row.prepared is None or self._next is not None:
            return
        try:
            row.known = self._look_up(row)
        except Exception as error:  # met again, and answered for, when its turn comes
            blame(error)
            return
        row.known.loads = self._load(row.known, ahead=True) or []

    def tend(self, coming: Iterable[Row] = (), begun: Sequence[Row] = ()) -> None:
        """Let go of what none of these rows waits for; the others ask again in their turn.
        ``begun``: the turn of these has come."""
        self._next = next((row for row in begun if row is self._next), None)
        if self._caches.loading:
            rows = (row for row in [*coming, *begun] if row.filling is None)
            known = [row.known for row in rows if row.known is not None]
            wanted = {load for one in known for load in one.loads}
            turn = {load for one in known if one.sought for load in one.loads}
            self._caches.tend(wanted, turn)

    def _look_up(self, row: Row) -> Known:
        prepared = row.prepared or Prepared([])
        caches = self._caches
        keys = caches.prefixes.keys(prepared, row.ids)
        # The last token is always fed: the first step of decode needs its logits.
        known = Known(keys[: (row.length - 1) // BLOCK], caches.features.keys(prepared))
        known.unsplit = self._adapter.unsplit(prepared)
        if prepared.images:
            media = np.flatnonzero(np.isin(prepared.ids, self._media_tokens))
            known.media, known.shown = media.size, int(media[-1]) + 1 if media.size else 0
        caches.renew(known.keys, known.pictures)
        return known

    def _load(
        self, known: Known, *, ahead: bool = False, yielding: bool = False
    ) -> list[Load] | None:
        least = -(-known.unsplit // BLOCK)
        return self._caches.load(
            known.keys,
            known.pictures,
            least=least,
            shown=known.shown,
            ahead=ahead,
            yielding=yielding,
        )

    def _find(self, row: Row, known: Known) -> None:
        """What is there now: rows that began since may have stored more."""
        prefixes, features = self._caches.prefixes, self._caches.features
        seen = prefixes.store.changes, features.store.changes
        if known.seen == seen:
            return
        known.seen = seen
        known.prefix = max(
            known.prefix, prefixes.find(known.keys), key=lambda prefix: prefix.tokens
        )
        if row.vision is None and row.prepared and row.prepared.images:
            if known.media and known.prefix.tokens >= known.shown:
                row.vision = Vision(None)
            else:
                row.vision = features.find(known.pictures, known.media)
            self.counts["images_recalled"] += row.prepared.images if row.vision else 0

    def cache(self, row: Row, unsplit: int) -> list[Any] | None:
        """A cache after the row's known prefix, and ``row.fed`` set; None: nothing is known.

        A prefix that ends within the first ``unsplit`` tokens cannot be gone on from.
        """
        known = row.known
        if known is not None:
            self._find(row, known)
        fed = known.prefix.tokens if known is not None else 0
        if known is None or not fed or fed < unsplit:
            row.take_up(0)
            return None
        cache = self._caches.prefixes.use(known.prefix)
        row.fed, known.kept = fed, fed // BLOCK
        cached = min(fed, len(row.prompt))
        row.take_up(cached)
        self.counts["cached_tokens"] += cached
        known.prefix = Prefix()
        known.loads = []
        return cache

    def slice_end(self, row: Row, start: int, end: int, unsplit: int) -> int:
        """Where a slice ends that would end at ``end``: at a block's border if states count."""
        if not (
            self._caches.prefixes.layout.moving and row.prepared and row.known and row.known.keys
        ):
            return end
        last = min(row.prepared.stable or len(row.prompt), row.length - 1) // BLOCK * BLOCK
        border = last if start < last <= end else end - end % BLOCK
        if border <= start or border < unsplit or (end == row.length - 1 and border != last):
            return end
        return border

    def find(self, row: Row) -> None:
        """Look again for a row that begins now."""
        if row.known is not None:
            self._find(row, row.known)

    def keep(self, row: Row, start: int) -> None:
        """Store what was fed so far, since ``start`` of late, so that rows that wait find it."""
        known, filling = row.known, row.filling
        if known is None or filling is None:
            return
        prefixes = self._caches.prefixes
        until = min(row.fed // BLOCK, len(known.keys))
        prefixes.store.counts["misses"] += max(0, until - start // BLOCK)
        if until > known.kept and not known.full:
            kept = prefixes.keep(known.keys, filling.cache, known.kept, until)
            known.kept, known.full = kept or known.kept, kept is None

    def keep_vision(self, row: Row) -> None:
        """Store the pictures of a row that have just been encoded."""
        if row.prepared is not None and row.vision is not None:
            self._caches.features.keep(row.prepared, row.vision)

    def share_vision(self, row: Row, others: Sequence[Row]) -> None:
        """Others show what was just encoded for a row."""
        for other in others:
            other.vision = row.vision
            self.counts["images_recalled"] += other.prepared.images if other.prepared else 0

    @property
    def proof(self) -> Proof:
        """Tells the caches what is computed without an error; decode batches report to it."""
        return self._caches.proof

    def publish(self) -> None:
        """Let the SSD have what has been proved."""
        self._caches.publish()

    def settle(self) -> None:
        """Nothing is left to do: prove the rest. Raises what the device met."""
        self._caches.settle()

    def distrust(self) -> None:
        """The device has failed: forget what is not proved."""
        self._caches.distrust()

    def close(self) -> None:
        """Forget nothing that the SSD still has to write."""
        self._caches.close()

    @property
    def nbytes(self) -> int:
        """Bytes that the caches hold in memory."""
        return self._caches.nbytes

    def make_room(self, nbytes: int) -> None:
        """Give memory up for running rows."""
        self._caches.make_room(nbytes)

    def stats(self) -> dict[str, Any]:
        """Counters of hits, and of the caches."""
        found = {name: self.counts[name] for name in ("cached_tokens", "images_recalled")}
        return {**found, **self._caches.stats()}
