"""What is done to the server: restarts, limits on idle connections, and FLUSHALL."""

from __future__ import annotations

import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from chaos.faults import Holdings
from chaos.kinds import Kinds
from chaos.records import Snapshot, flush
from chaos.stage import Server


@dataclass
class ServerFaults:
    """``flushed``: what each FLUSHALL took away."""

    kinds: Kinds
    server: Server
    holdings: Holdings
    counts: Counter[str]
    flushed: list[Snapshot] = field(default_factory=list[Snapshot])
    _idle_until: float = 0.0
    _ended: int = 0

    def restart(self) -> None:
        """End the server, in order or not, and start it again after a moment."""
        if self.holdings.unlucky():
            return
        rng = self.kinds.rng("restarts")
        rough = rng.random() < 0.5
        self.server.stop(signal.SIGKILL if rough else signal.SIGTERM)
        time.sleep(rng.uniform(0.0, 0.8))
        self.server.start()
        self._idle_until = 0.0  # the limit was not in its settings
        self.counts["server kills" if rough else "server restarts"] += 1

    @property
    def restarts(self) -> int:
        return self.counts["server restarts"] + self.counts["server kills"]

    def limit_idle(self, seconds: float | None = None) -> None:
        """Close connections that are idle for one to three seconds, for a while.

        For ``seconds``, if given, and then those of one second.
        """
        if self._idle_until and seconds is None:
            return
        rng = self.kinds.rng("idle")
        self.server.client.config_set("timeout", 1 if seconds else rng.randint(1, 3))
        self._idle_until = time.monotonic() + (seconds or rng.uniform(8.0, 20.0))
        self.counts["idle limits"] += 1

    def tend(self) -> None:
        """Take a limit back when its time is over."""
        if self._idle_until and time.monotonic() > self._idle_until:
            self.server.client.config_set("timeout", 0)
            self._idle_until = 0.0

    def flush(self) -> None:
        """FLUSHALL."""
        before = self.ended
        shot = flush(self.server.client, self.holdings.queue, len(self.flushed) + 1)
        self.flushed.append(shot)
        self._ended = before
        self.counts["flushes"] += 1

    @property
    def ended(self) -> int:
        """Jobs that have ended so far, before and after each FLUSHALL."""
        client, stream = self.server.client, f"mlxq:{{{self.holdings.queue}}}:results"
        if not client.exists(stream):
            return self._ended
        about: Any = client.xinfo_stream(stream)  # its length would shrink with each trimming
        return self._ended + int(about["entries-added"])
