"""What is done to connections: lost replies, delays, cuts anywhere, and slow links."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from chaos.kinds import Kinds
from tcp_proxy import TcpProxy

MARKS: Final = ("EVALSHA", "XREADGROUP", ":result:", ":events:", "XAUTOCLAIM", "HMGET", "PUBLISH")
"""A request with one of these in it is the next to lose its reply, or to be late."""
WHOLE: Final = ("EVALSHA", "XREADGROUP", "XAUTOCLAIM")
"""Requests that are cut in the middle."""


@dataclass
class Links:
    """``proxies``: those of one side may be named more than once, to be chosen more often."""

    kinds: Kinds
    proxies: list[TcpProxy]
    counts: Counter[str]

    def disturb(self) -> None:
        """Lose a reply, hold a request up, or cut all connections of one side."""
        rng = self.kinds.rng("replies")
        proxy = rng.choice(self.proxies)
        done = rng.choice(("swallow", "swallow", "swallow", "delay", "cut"))
        if done == "cut" and "cuts" in self.kinds:
            self.counts["cuts"] += 1
            self.counts["connections cut"] += proxy.cut()
        elif done == "delay" and "replies" in self.kinds:
            proxy.delay(rng.choice(MARKS), rng.uniform(0.1, 1.0))
        elif done == "swallow" and "replies" in self.kinds:
            proxy.swallow(rng.choice(MARKS))

    def halve(self) -> None:
        """Cut the next request of a kind, or the reply to it, in the middle."""
        rng = self.kinds.rng("halves")
        proxy, mark = rng.choice(self.proxies), rng.choice(WHOLE)
        # Alternately, so that each comes in the shortest run.
        self.counts["halves"] += 1
        (proxy.cut_request if self.counts["halves"] % 2 else proxy.cut_reply)(mark)

    def slow(self) -> None:
        """One side's link is slow for some seconds."""
        rng = self.kinds.rng("slow")
        rng.choice(self.proxies).slow(rng.choice((8_000, 20_000, 50_000)), rng.uniform(1.0, 4.0))
        self.counts["slow links"] += 1

    @property
    def late(self) -> bool:
        """True while something that a process has sent may not have arrived."""
        return any(proxy.late for proxy in self.proxies)

    @property
    def broken_off(self) -> int:
        """Replies swallowed and cuts so far."""
        return self.counts["cuts"] + self.total("swallowed")

    @property
    def halved(self) -> int:
        return self.total("cut_requests") + self.total("cut_replies")

    def total(self, name: str) -> int:
        """The sum of a count of all proxies."""
        return sum(getattr(proxy, name) for proxy in set(self.proxies))
