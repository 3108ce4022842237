"""One run: faults until every quota is met, quiet until every job has ended, then the check."""

from __future__ import annotations

import json
import random
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from chaos.check import Checker, Verdict
from chaos.diary import Lives
from chaos.faults import Faults, Holdings
from chaos.kinds import Kinds
from chaos.links import Links
from chaos.server_faults import ServerFaults
from chaos.stage import ProducerProcess, Server, spawn
from chaos.table import figures
from chaos.templates import make_templates, toxic_templates
from mlxq_producer.embedded import find_binary
from tcp_proxy import TcpProxy

QUEUE: Final = "chaos"
TICK: Final = 0.05
MOST_WAITS: Final = 100
"""Turns for which a FLUSHALL is put off until a worker that has jobs can be frozen over it."""
STALL: Final = 180.0
"""Seconds without the end of a job after which a run has failed."""

LATE_LEASES: Final = 40
"""No dead worker's job may wait for so many leases, however busy the machine is."""


@dataclass(frozen=True)
class Quotas:
    """At least so much of each; ``templates`` is the size of the pool, ``seed`` draws it all.

    ``cuts`` counts swallowed replies too, ``halves`` what is cut in the middle. ``lease`` is that
    of the workers in seconds: the server's limit on idle connections bites where a quarter of it
    is longer.
    """

    jobs: int = 2000
    kills: int = 150
    freezes: int = 20
    restarts: int = 20
    cuts: int = 50
    halves: int = 40
    slow: int = 30
    idle: int = 20
    flush: int = 5
    templates: int = 72
    workers: int = 3
    producers: int = 3
    lease: int = 3
    seed: int = 1

    def within(self, kinds: Kinds) -> Quotas:
        """Nothing of the kinds that are left out."""
        names = ("kills", "freezes", "restarts", "halves", "slow", "idle", "flush")
        out = {name: 0 for name in names if name not in kinds}
        if "cuts" not in kinds and "replies" not in kinds:
            out["cuts"] = 0
        return replace(self, **out)


@dataclass
class Outcome:
    """What a run came to; ``clean``: all quotas met, and nothing amiss."""

    figures: dict[str, int | float]
    clean: bool
    problems: list[str] = field(default_factory=list[str])


class Run:
    """``folder`` gets the server's data, and the logs and diaries of all processes."""

    def __init__(self, quotas: Quotas, folder: Path, kinds: Kinds) -> None:
        self._quotas = quotas.within(kinds)
        self._kinds = kinds
        self._folder = folder
        self._rng = random.Random(quotas.seed)
        self._began = time.monotonic()
        self._quiet = folder / "quiet"
        self._producers: list[ProducerProcess] = []
        self._problems: list[str] = []
        self._counts: Counter[str] = Counter()
        self._waited = 0

    def run(self) -> Outcome:
        """The whole run. Raises only if the stage itself fails."""
        pool = self._templates()
        server = Server(find_binary(), self._folder)
        server.start()
        to_workers, to_producers = TcpProxy(server.url), TcpProxy(server.url)
        proxies = [to_workers, to_workers, to_producers]
        holdings = Holdings(server, QUEUE)
        self._links = Links(self._kinds, proxies, self._counts)
        self._server = ServerFaults(self._kinds, server, holdings, self._counts)
        faults = self._faults(to_workers.url, holdings)
        try:
            self._produce(to_producers.url)
            faults.staff(self._quotas.workers)
            done = self._storm(faults) and self._calm(faults)
            faults.stop()
            verdict = self._check(pool)
        finally:
            faults.close()
            for producer in self._producers:
                producer.close()
            for proxy in (to_workers, to_producers):
                proxy.close()
            server.stop(signal.SIGKILL)
        return self._outcome(faults, verdict, done)

    def _faults(self, url: str, holdings: Holdings) -> Faults:
        lease = self._quotas.lease
        options = ["--redis-url", url, "--queue", QUEUE, "--lease", str(lease)]
        options += ["--max-rows", "4", "--look-ahead", "2", "--grace", "1.5"]
        return Faults(
            kinds=self._kinds,
            links=self._links,
            holdings=holdings,
            folder=self._folder,
            options=options,
            lease=lease,
            counts=self._counts,
        )

    def _templates(self) -> dict[str, dict[str, Any]]:
        """The pool with its solo texts, which another process computes before all else."""
        pictures = self._folder / "pictures"
        pictures.mkdir()
        pool = self._folder / "pool.json"
        good = make_templates(self._rng, self._quotas.templates, pictures)
        pool.write_text(json.dumps(good))
        log = self._folder / "solo.log"
        if spawn([sys.executable, "-m", "chaos.solo", str(pool)], log).wait(1800):
            raise RuntimeError(f"no solo texts: {log.read_text()[-2000:]}")
        kept = [*json.loads(pool.read_text()), *toxic_templates(pictures)]
        pool.write_text(json.dumps(kept))
        return {template["name"]: template for template in kept}

    def _produce(self, url: str) -> None:
        options = ["--url", url, "--queue", QUEUE, "--seed", str(self._quotas.seed)]
        options += ["--pool", str(self._folder / "pool.json"), "--until", str(self._quiet)]
        options.append(f"--without={','.join(sorted(self._kinds.without))}")
        for n in range(self._quotas.producers):
            shift = self._kinds.shift(n + 1, "producers")
            self._counts["producers with wrong clocks"] += bool(shift)
            self._producers.append(ProducerProcess(f"p{n}", options, self._folder, shift))

    def _storm(self, faults: Faults) -> bool:
        """Faults until the quotas are met; False if nothing moved for too long."""
        watch = Watch(self._server)
        while not self._met():
            done = self._server.ended / self._quotas.jobs
            kills = self._quotas.kills
            share = min(1.0, self._counts["worker kills"] / kills if kills else done)
            # Kills keep step with jobs: a run that only loads models shows nothing.
            freeze = self._counts["worker freezes"] < share * self._quotas.freezes
            faults.tend(harm=share <= done + 0.05, freeze=freeze)
            self._harm_server(share, faults)
            self._harm_links(share)
            if "producers" in self._kinds and self._draw("producers", 0.002):
                self._kinds.rng("producers").choice(self._producers).kill_and_restart()
                self._counts["producer kills"] += 1
            if watch.stalled() or self._producer_failed():
                return False
            faults.watch_takeovers()
            time.sleep(TICK)
        return True

    def _harm_server(self, share: float, faults: Faults) -> None:
        quotas, counts, server = self._quotas, self._counts, self._server
        server.tend()
        if server.restarts < share * quotas.restarts:
            server.restart()
        if counts["idle limits"] < share * quotas.idle:
            server.limit_idle()
        # In the midst of each part of the run, not at its begin.
        if counts["flushes"] + 0.5 < share * quotas.flush:
            self._waited += 1
            frozen = "freezes" not in self._kinds or faults.freeze_holder()
            if frozen or self._waited > MOST_WAITS:
                server.flush()
                self._waited = 0

    def _harm_links(self, share: float) -> None:
        quotas, links = self._quotas, self._links
        behind = links.broken_off < share * quotas.cuts
        if quotas.cuts and self._draw("replies", 0.1 if behind else 0.005):
            links.disturb()
        behind = links.halved < share * quotas.halves
        if quotas.halves and self._draw("halves", 0.1 if behind else 0.005):
            links.halve()
        if self._counts["slow links"] < share * quotas.slow:
            links.slow()

    def _draw(self, kind: str, chance: float) -> bool:
        return self._kinds.rng(f"when {kind}").random() < chance

    def _met(self) -> bool:
        quotas, counts = self._quotas, self._counts
        return (
            counts["worker kills"] >= quotas.kills
            and counts["worker freezes"] >= quotas.freezes
            and self._server.restarts >= quotas.restarts
            and self._links.broken_off >= quotas.cuts
            and self._links.halved >= quotas.halves
            and counts["slow links"] >= quotas.slow
            and counts["idle limits"] >= quotas.idle
            and counts["flushes"] >= quotas.flush
            and self._server.ended >= quotas.jobs
        )

    def _calm(self, faults: Faults) -> bool:
        """No more faults and no new jobs: wait for the end of what there is.

        What takes jobs over must also do so while the server closes idle connections.
        """
        self._quiet.touch()
        if self._quotas.idle:
            self._server.limit_idle(STALL)
        watch = Watch(self._server)
        while any(producer.status is None for producer in self._producers) or not _empty(
            self._server.server
        ):
            faults.tend(harm=False)
            faults.watch_takeovers()
            if watch.stalled() or self._producer_failed():
                return False
            time.sleep(TICK)
        return True

    def _producer_failed(self) -> bool:
        for producer in self._producers:
            if producer.status not in (None, 0):
                self._problems.append(f"a producer ended: {producer.log[-2000:]}")
                return True
        return False

    def _check(self, pool: dict[str, dict[str, Any]]) -> Verdict:
        lives = Lives.of(producer.diary for producer in self._producers)
        client = self._server.server.client
        return Checker(client, QUEUE, pool, lives, self._server.flushed).check()

    def _outcome(self, faults: Faults, verdict: Verdict, done: bool) -> Outcome:
        seconds = round(time.monotonic() - self._began)
        problems = [*verdict.problems, *self._problems, *faults.crashes]
        if not done:
            problems.append("the run did not come to its end: no job ended any more")
        if faults.longest_wait > LATE_LEASES * self._quotas.lease:
            problems.append(f"a dead worker's job was nobody's for {faults.longest_wait:.0f} s")
        clean = done and verdict.clean and not problems
        shown = figures(self._counts, self._links, verdict, seconds, faults.longest_wait)
        return Outcome(shown, clean, problems)


class Watch:
    """Notices that no job ends any more."""

    def __init__(self, server: ServerFaults) -> None:
        self._server = server
        self._count = -1
        self._since = time.monotonic()

    def stalled(self) -> bool:
        count = self._server.ended
        if count != self._count:
            self._count, self._since = count, time.monotonic()
        return time.monotonic() - self._since > STALL


def _empty(server: Server) -> bool:
    names = [f"mlxq:{{{QUEUE}}}:jobs:{priority}" for priority in ("high", "normal", "low")]
    waiting = sum(server.client.xlen(name) for name in names)
    return not waiting and not server.client.zcard(f"mlxq:{{{QUEUE}}}:delayed")
