"""Blocks on their way from the SSD to memory: read once, for however many rows wait for them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from mlxq_worker.cache.block import Block
from mlxq_worker.cache.host import HostBlock
from mlxq_worker.cache.store import BlockStore
from mlxq_worker.cache.template import Misfit


@dataclass(eq=False)
class Load:
    """A run of blocks that one read brings; ``nbytes`` are reserved for them until no row waits.

    ``chain``: the whole run, with what was in memory before. ``ahead``: no row whose turn has come
    waits for it. ``here``: what was read is in memory.
    """

    keys: tuple[bytes, ...]
    chain: Sequence[bytes]
    nbytes: int
    future: Future[list[HostBlock]]
    ahead: bool = False
    here: bool = False


class Loads:
    """All loads of one store. Engine thread only; the reading is done by the SSD tier's threads."""

    def __init__(
        self,
        store: BlockStore,
        fit: Callable[[HostBlock], Block],
        size: Callable[[int], int] = int,
    ) -> None:
        """``fit`` makes a block of what was read; raises :class:`Misfit`. ``size``: the most bytes
        that a block takes in memory, from those on disk."""
        self._store = store
        self._fit = fit
        self._size = size
        self._by_key: dict[bytes, Load] = {}

    def __bool__(self) -> bool:
        return bool(self._by_key)

    def __contains__(self, load: Load) -> bool:
        return self._by_key.get(load.keys[0]) is load

    def fitting(self, keys: Sequence[bytes], *, ahead: bool = False) -> int:
        """How many of ``keys``, from the first on, are in memory, on their way, or can be brought
        into the room that there is: what a row takes up now is of more use than what others took
        up before. ``ahead``: that stays, and half of the memory too."""
        store, disk = self._store, self._store.disk
        left = store.room(keys, displacing=not ahead)
        if ahead:
            left = min(left, store.max_bytes // 2 - store.reserved)
        for n, key in enumerate(keys):
            if not self._missing(key):
                continue
            size = self._size(disk.size(key)) if disk is not None else 0
            if not 0 < size <= left:
                return n
            left -= size
        return len(keys)

    def reach(
        self, keys: Sequence[bytes], *, ahead: bool = False, yielding: bool = False
    ) -> int | None:
        """As :meth:`fitting`, but None while it pays to wait: more could come, were it not for what
        rows hold whose turn has come too. They will begin, and leave their room. ``yielding``: one
        that came before waits so, and no room is taken from it."""
        fitting = self.fitting(keys, ahead=ahead)
        if yielding and any(map(self._missing, keys[:fitting])):
            return None
        if ahead or not self._short(keys, fitting):
            return fitting
        self._make_way(set(keys))
        fitting = self.fitting(keys)
        held = any(not load.ahead for load in self._by_key.values())
        return None if held and self._short(keys, fitting) else fitting

    def _short(self, keys: Sequence[bytes], fitting: int) -> bool:
        """True if there was no room for what comes after the first ``fitting`` keys."""
        disk = self._store.disk
        return disk is not None and fitting < len(keys) and disk.has(keys[fitting])

    def _missing(self, key: bytes) -> bool:
        """True if a block is neither in memory nor on its way."""
        return key not in self._store and key not in self._by_key

    def _make_way(self, keys: Collection[bytes]) -> None:
        """Let go of what was read ahead of other rows' turns: that of ``keys`` has come."""
        for load in dict.fromkeys(self._by_key.values()):
            if load.ahead and not any(key in keys for key in load.keys):
                self._end(load, keep=True)

    def begin(self, keys: Sequence[bytes], *, ahead: bool = False) -> list[Load]:
        """Bring what is missing of ``keys``, all of which :meth:`fitting` has found; the loads to
        wait for, those that others have begun too."""
        loads = list(dict.fromkeys(self._by_key[key] for key in keys if key in self._by_key))
        for load in loads:
            load.ahead = load.ahead and ahead
        disk = self._store.disk
        missing = [key for key in keys if self._missing(key)]
        if disk is not None and missing:
            size = sum(self._size(disk.size(key)) for key in missing)
            self._store.reserve(size, keys)
            load = Load(tuple(missing), keys, size, disk.load(missing), ahead)
            self._by_key |= dict.fromkeys(missing, load)
            loads.append(load)
        return loads

    def arrived(self, load: Load) -> bool:
        """True once a load is in memory, as far as it could be read."""
        if not load.here and load.future.done():
            load.here = True
            self._store.stage(self._fitting_blocks(load.future.result()))
        return load.here

    def _fitting_blocks(self, hosts: Sequence[HostBlock]) -> list[Block]:
        """What the model can take up of what was read; the rest is damaged, and a miss."""
        blocks: list[Block] = []
        for host in hosts:
            try:
                blocks.append(self._fit(host))
            except Misfit as error:
                if self._store.disk is not None:
                    self._store.disk.distrust(host.key, str(error))
        return blocks

    def tend(self, wanted: Collection[Load], turn: Collection[Load]) -> None:
        """Let go of the loads that no row waits for any more; ``turn``: those for which rows wait
        whose turn has come."""
        for load in dict.fromkeys(self._by_key.values()):
            # Who shared a load with others may be the last to wait for it, and not in turn yet.
            load.ahead = load not in turn
            if load not in wanted:
                self._end(load, keep=True)

    def drop(self) -> None:
        """Forget all: rows that wait compute what they lack."""
        for load in dict.fromkeys(self._by_key.values()):
            self._end(load, keep=False)

    def _end(self, load: Load, *, keep: bool) -> None:
        load.future.cancel()
        load.here = True
        for key in load.keys:
            del self._by_key[key]
        self._store.unstage(load.keys, load.nbytes, load.chain, keep=keep)
