"""One run: faults until every quota is met, quiet until every job has ended, then the check."""

from __future__ import annotations

import json
import random
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from chaos.check import Checker, Diaries, Verdict
from chaos.faults import LEASE, Faults, Holdings
from chaos.stage import ProducerProcess, Server, spawn
from chaos.templates import make_templates, toxic_templates
from mlxq_producer.embedded import find_binary
from tcp_proxy import TcpProxy

QUEUE: Final = "chaos"
TICK: Final = 0.05
STALL: Final = 180.0
"""Seconds without the end of a job after which a run has failed."""


@dataclass(frozen=True)
class Quotas:
    """At least so much of each; ``templates`` is the size of the pool, ``seed`` draws it all."""

    jobs: int = 2000
    kills: int = 150
    restarts: int = 20
    cuts: int = 50
    templates: int = 72
    workers: int = 3
    producers: int = 3
    seed: int = 1


@dataclass
class Outcome:
    """What a run came to; ``clean``: all quotas met, and nothing amiss."""

    figures: dict[str, int | float]
    clean: bool
    problems: list[str] = field(default_factory=list[str])


class Run:
    """``folder`` gets the server's data, and the logs and diaries of all processes."""

    def __init__(self, quotas: Quotas, folder: Path) -> None:
        self._quotas = quotas
        self._folder = folder
        self._rng = random.Random(quotas.seed)
        self._began = time.monotonic()
        self._quiet = folder / "quiet"
        self._producers: list[ProducerProcess] = []
        self._problems: list[str] = []

    def run(self) -> Outcome:
        """The whole run. Raises only if the stage itself fails."""
        pool = self._templates()
        server = Server(find_binary(), self._folder)
        server.start()
        to_workers, to_producers = TcpProxy(server.url), TcpProxy(server.url)
        options = ["--redis-url", to_workers.url, "--queue", QUEUE, "--lease", str(LEASE)]
        options += ["--max-rows", "4", "--look-ahead", "2", "--grace", "1.5"]
        faults = Faults(
            rng=self._rng,
            server=server,
            proxies=[to_workers, to_workers, to_producers],
            holdings=Holdings(server, QUEUE),
            folder=self._folder,
            options=options,
        )
        try:
            self._produce(to_producers.url)
            faults.staff(self._quotas.workers)
            done = self._storm(faults) and self._calm(faults)
            faults.stop()
            verdict = self._check(server, pool)
        finally:
            faults.close()
            for producer in self._producers:
                producer.close()
            for proxy in (to_workers, to_producers):
                proxy.close()
            server.stop(signal.SIGKILL)
        return self._outcome(faults, verdict, done)

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
        for n in range(self._quotas.producers):
            self._producers.append(ProducerProcess(f"p{n}", options, self._folder))

    def _storm(self, faults: Faults) -> bool:
        """Faults until the quotas are met; False if nothing moved for too long."""
        quotas, watch = self._quotas, Watch(faults.server)
        while not self._met(faults):
            share = min(1.0, faults.counts["worker kills"] / quotas.kills)
            # Kills keep step with jobs: a run that only loads models shows nothing.
            faults.tend(harm=share <= _ended(faults.server) / quotas.jobs + 0.05)
            if self._restarts(faults) < share * quotas.restarts:
                faults.restart_server()
            behind = faults.broken_off < share * quotas.cuts
            if self._rng.random() < (0.1 if behind else 0.005):
                faults.disturb()
            if self._rng.random() < 0.002:
                self._rng.choice(self._producers).kill_and_restart()
                faults.counts["producer kills"] += 1
            if watch.stalled() or self._producer_failed():
                return False
            time.sleep(TICK)
        return True

    def _met(self, faults: Faults) -> bool:
        quotas, counts = self._quotas, faults.counts
        return (
            counts["worker kills"] >= quotas.kills
            and self._restarts(faults) >= quotas.restarts
            and faults.broken_off >= quotas.cuts
            and _ended(faults.server) >= quotas.jobs
        )

    def _calm(self, faults: Faults) -> bool:
        """No more faults and no new jobs: wait for the end of what there is."""
        self._quiet.touch()
        watch = Watch(faults.server)
        while any(producer.status is None for producer in self._producers) or not _empty(
            faults.server
        ):
            faults.tend(harm=False)
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

    def _restarts(self, faults: Faults) -> int:
        return faults.counts["server restarts"] + faults.counts["server kills"]

    def _check(self, server: Server, pool: dict[str, dict[str, Any]]) -> Verdict:
        diaries = Diaries.of(producer.diary for producer in self._producers)
        return Checker(server.client, QUEUE, pool, diaries).check()

    def _outcome(self, faults: Faults, verdict: Verdict, done: bool) -> Outcome:
        counts = faults.counts
        figures: dict[str, int | float] = {
            "jobs": verdict.jobs,
            **{f"jobs {kind}": verdict.ends[kind] for kind in ("finished", "failed", "cancelled")},
            "jobs resumed in the middle": verdict.resumed,
            "tokens": verdict.tokens,
            "workers started": counts["workers"],
            "worker kills (SIGKILL)": counts["worker kills"],
            "worker freezes beyond the lease": counts["worker freezes"],
            "worker drains (SIGTERM)": counts["worker drains"],
            "workers that found no server": counts["workers without a server"],
            "producer kills": counts["producer kills"],
            "server restarts": counts["server restarts"],
            "server kills": counts["server kills"],
            "replies swallowed": sum(proxy.swallowed for proxy in set(faults.proxies)),
            "requests delayed": sum(proxy.delayed for proxy in set(faults.proxies)),
            "cuts": counts["cuts"],
            "connections cut by them": counts["connections cut"],
            "seconds": round(time.monotonic() - self._began),
            "lost": verdict.lost,
            "doubled": verdict.doubled,
            "wrong": verdict.wrong,
            "left over": verdict.left_over,
            "worker crashes": counts["worker crashes"],
        }
        problems = [*verdict.problems, *self._problems, *faults.crashes]
        if not done:
            problems.append("the run did not come to its end: no job ended any more")
        clean = done and verdict.clean and not problems
        return Outcome(figures, clean, problems)


class Watch:
    """Notices that no job ends any more."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._count = -1
        self._since = time.monotonic()

    def stalled(self) -> bool:
        count = _ended(self._server)
        if count != self._count:
            self._count, self._since = count, time.monotonic()
        return time.monotonic() - self._since > STALL


def _ended(server: Server) -> int:
    return server.client.xlen(f"mlxq:{{{QUEUE}}}:results")


def _empty(server: Server) -> bool:
    names = [f"mlxq:{{{QUEUE}}}:jobs:{priority}" for priority in ("high", "normal", "low")]
    waiting = sum(server.client.xlen(name) for name in names)
    return not waiting and not server.client.zcard(f"mlxq:{{{QUEUE}}}:delayed")
