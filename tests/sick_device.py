"""A device that fails as MLX tells of it: later, once, and with garbage in what it computed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest

from mlxq_worker.cache import features, prefix
from mlxq_worker.engine import batch

METAL = "[METAL] Command buffer execution failed: "
MEMORY = (
    f"{METAL}Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)",
    "[malloc] Unable to allocate 1073741824 bytes.",
    "cudaMallocAsync(&data, size, stream) failed: out of memory",
)
OTHER = (
    f"{METAL}Impacting Interactivity "
    "(0000000e:kIOGPUCommandBufferCallbackErrorImpactingInteractivity)",
    "cudaEventSynchronize(event_) failed: an illegal memory access was encountered",
)
EVER = sys.maxsize

WORK = ("decode", "prefill", "encode", "store")
"""What may fail: passes of the model, the picture encoder, blocks that are cut for the caches."""


class SickDevice:
    """Stands in for the device of one generator.

    From its ``after``-th call on, ``work`` fails ``times`` times: all arrays computed since the
    last good read get garbage, and the ``error`` comes in whatever uses the device next. Calls
    of each work are in ``calls``, failed ones in ``failed``.
    """

    def __init__(self, patch: pytest.MonkeyPatch, generator: Any) -> None:
        self.calls = dict.fromkeys((*WORK, "synchronize", "read"), 0)
        self.failed = 0
        self.raised = 0
        self._work, self._after, self._times, self._error = "", 0, 0, ""
        self._pending = ""
        self._computed: list[list[Any]] = [[], []]
        adapter = generator._adapter
        for name, work in (
            ("decode", "decode"),
            ("prefill", "prefill"),
            ("prefill_text", "prefill"),
        ):
            patch.setattr(adapter, name, self._model(getattr(adapter, name), work))
        patch.setattr(adapter, "encode", self._encoder(adapter.encode))
        for module in (prefix, features):
            patch.setattr(module, "evaluate", self._store(module.evaluate))
        patch.setattr(batch, "read", self._reader(batch.read))
        patch.setattr(mx, "synchronize", self._synchronise(mx.synchronize))

    def fail(self, work: str, *, after: int = 1, times: int = 1, error: str = MEMORY[0]) -> None:
        """Let some work fail from now on."""
        self._work, self._after, self._times, self._error = work, after, times, error

    def heal(self) -> None:
        self._times, self._pending = 0, ""

    def _use(self) -> None:
        error, self._pending = self._pending, ""
        if error:
            self.raised += 1
            raise RuntimeError(error)

    def _done(self, work: str, holders: list[Any]) -> None:
        """Some work has been queued."""
        self.calls[work] += 1
        self._computed[-1] += holders
        if work != self._work or self._times <= 0:
            return
        self._after -= 1
        if self._after < 0:
            self._times -= 1
            self.failed += 1
            self._pending = self._error
            for holder in (h for some in self._computed for h in some):
                _spoil(holder)
            self._computed = [[], []]

    def _model(self, real: Callable[..., Any], work: str) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            self._use()
            if work == "decode":
                self._computed.append([])
            logits = real(*args)
            self._done(work, [*args[-1], *([logits] if logits is not None else [])])
            return logits

        return call

    def _encoder(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(prompts: Any) -> Any:
            for group, visions in real(prompts):
                self._use()
                arrays = [a for v in visions for a in (v.features, *v.deepstack) if a is not None]
                self._done("encode", arrays)
                yield group, visions

        return call

    def _store(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(blocks: Any) -> None:
            self._use()
            real(blocks)
            if blocks:
                self._done("store", [array for block in blocks for array in block.arrays])

        return call

    def _reader(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arrays: mx.array) -> Any:
            self._use()
            self.calls["read"] += 1
            found = real(*arrays)
            # What was queued before the step that is read now, which is the last but one.
            self._computed = self._computed[-2:]
            return found

        return call

    def _synchronise(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call() -> None:
            self._use()
            self.calls["synchronize"] += 1
            real()
            self._computed = [[], []]

        return call


def _spoil(holder: Any) -> None:
    """Overwrite an array, or all arrays of a layer's cache, for whoever holds them."""
    if isinstance(holder, mx.array):
        if mx.issubdtype(holder.dtype, mx.floating) and holder.size:
            holder[...] = mx.sin(mx.arange(holder.size) * 7.7).reshape(holder.shape)
    elif isinstance(holder, (list, tuple)):
        for item in holder:
            _spoil(item)
    elif holder is not None:
        for value in vars(holder).values():
            if isinstance(value, (mx.array, list, tuple)):
                _spoil(value)
