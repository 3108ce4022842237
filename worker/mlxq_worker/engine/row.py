"""One request in the engine: everything that belongs to the row, and to nothing else."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from mlxq_schemas import FinishReason, Usage
from mlxq_worker.cache.loads import Load
from mlxq_worker.cache.prefix import Prefix
from mlxq_worker.engine.request import Request, Times
from mlxq_worker.engine.text import Detokenizer, StopMatcher
from mlxq_worker.models.adapter import Embedded
from mlxq_worker.models.prepared import Prepared
from mlxq_worker.models.vision import Vision


@dataclass(frozen=True)
class Filling:
    """A row in prefill: its embedded prompt and its own unbatched cache, one entry a layer."""

    embedded: Embedded
    cache: list[Any]


@dataclass
class Known:
    """``keys`` name the row's blocks, ``pictures`` its pictures; ``prefix`` is what it takes up.

    ``seen``: the state of the caches when they were looked up. ``sought``: its turn has come, and
    ``loads`` is what the SSD brings for it. ``unsplit``: a prefix of fewer tokens is of no use.
    ``media``: how many tokens stand for pictures, and ``shown``: the last of them ends there.
    ``kept``: how many of the row's own blocks are stored; ``full``: there was no room for more.
    """

    keys: list[bytes]
    pictures: list[bytes]
    media: int = 0
    shown: int = 0
    prefix: Prefix = field(default_factory=Prefix)
    seen: tuple[int, int] = (-1, -1)
    sought: bool = False
    loads: list[Load] = field(default_factory=list["Load"])
    unsplit: int = 0
    kept: int = 0
    full: bool = False


@dataclass
class Alone:
    """When a row first made the device fail that had nothing else to do: how many ``tokens`` it
    had, how many all rows had got (``others``); and how many ``times`` since."""

    others: int
    tokens: int
    times: int = 0


@dataclass
class Row:
    """State of one request from insert to its last response.

    ``vision`` are its encoded pictures until prefill begins, ``known`` what the caches have of
    it; ``cached`` counts the prompt tokens that were never computed for it (None: it has not begun
    yet). ``filling`` is there during prefill only. ``fed`` counts the tokens already in the cache;
    ``rope_delta`` is what is added to that to get the position of the next token. ``tokens`` are
    the generated ids, including those of earlier attempts. ``suspicion`` groups rows that start
    again because a step with them failed. ``came`` is the step of the insert; ``alone`` is there
    once the device failed with this row alone.
    """

    uid: int
    request: Request
    detokenizer: Detokenizer
    stops: StopMatcher
    eos: frozenset[int]
    max_tokens: int
    seed: int
    prepared: Prepared | None = None
    vision: Vision | None = None
    known: Known | None = None
    cached: int | None = None
    filling: Filling | None = None
    fed: int = 0
    rope_delta: int = 0
    tokens: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    suspicion: int | None = None
    came: int = 0
    starved: int = 0
    alone: Alone | None = None
    inserted: float = field(default_factory=time.perf_counter)
    prefill_began: float | None = None
    decode_began: float | None = None

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def ids(self) -> list[int]:
        """All tokens known: the prompt and what was generated, by earlier attempts too."""
        return [*self.prompt, *self.tokens]

    @property
    def length(self) -> int:
        """How many tokens are known; unlike ``len(row.ids)`` it builds no list."""
        return len(self.prompt) + len(self.tokens)

    @property
    def prompt(self) -> list[int]:
        """The prompt's token ids; empty until it is prepared."""
        return self.prepared.ids if self.prepared else []

    @property
    def nbytes(self) -> int:
        """Bytes of the row's own cache, during prefill."""
        return sum(int(layer.nbytes) for layer in self.filling.cache) if self.filling else 0

    @property
    def left(self) -> int:
        """Tokens to feed yet, as far as is known before the row begins."""
        taken = self.known.prefix.tokens if self.known and self.filling is None else self.fed
        return self.length - taken

    def restart(self, suspicion: int | None = None) -> None:
        """Forget the caches: what is known is prefilled again; generation goes on from there."""
        self.filling, self.fed, self.rope_delta = None, 0, 0
        self.known, self.vision = None, None
        self.suspicion = suspicion

    def take_up(self, tokens: int) -> None:
        """The row begins with so many prompt tokens out of the caches.

        When it begins again, what it computed itself may be among them, or some may be gone.
        """
        self.cached = tokens if self.cached is None else min(self.cached, tokens)

    def recall_prior(self) -> None:
        """Bring the row to where the earlier attempt had published to, be it its end."""
        for token in self.request.prior_ids:
            if self.finish_reason is None:
                self.take(token)
            else:
                self.tokens.append(token)

    def take(self, token: int) -> str:
        """Add one generated token; returns the text it releases and sets ``finish_reason``."""
        self.tokens.append(token)
        if token in self.eos and not self.request.sampling.ignore_eos:
            self.finish_reason = "stop"
            return self._last_text("")
        text = self.stops.add(self.detokenizer.add(token))
        if self.stops.stopped:
            self.finish_reason = "stop"
        elif len(self.tokens) >= self.max_tokens:
            text = self._last_text(text)
            self.finish_reason = "stop" if self.stops.stopped else "length"
        return text

    def _last_text(self, text: str) -> str:
        text += self.stops.add(self.detokenizer.flush())
        return text if self.stops.stopped else text + self.stops.flush()

    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=len(self.prompt),
            cached_tokens=self.cached or 0,
            completion_tokens=len(self.tokens),
            images=self.prepared.images if self.prepared else 0,
        )

    def times(self) -> Times:
        """Seconds in each stage so far; counted once each."""
        now = time.perf_counter()
        prefill = self.prefill_began if self.prefill_began is not None else now
        decode = self.decode_began if self.decode_began is not None else now
        return Times(
            waiting=prefill - self.inserted,
            prefill=max(0.0, decode - prefill),
            decode=max(0.0, now - decode),
        )

    def begin_decode(self) -> None:
        """Note that the prompt is in the cache."""
        if self.decode_began is None:
            self.decode_began = time.perf_counter()
