"""What was done in a run and what came of it, one figure a line."""

from __future__ import annotations

from collections import Counter

from chaos.check import Verdict
from chaos.links import Links

Figures = dict[str, int | float]


def figures(
    counts: Counter[str], links: Links, verdict: Verdict, seconds: int, longest_wait: float
) -> Figures:
    """``longest_wait``: seconds for which the job of a worker that had ended waited for another."""
    return {
        **_jobs(verdict),
        **_processes(counts),
        **_server(counts, verdict),
        **_links(counts, links),
        "longest wait to be taken over (s)": round(longest_wait, 1),
        "seconds": seconds,
        "lost": verdict.lost,
        "doubled": verdict.doubled,
        "wrong": verdict.wrong,
        "events of a former life": verdict.mixed,
        "left over": verdict.left_over,
        "worker crashes": counts["worker crashes"],
    }


def _jobs(verdict: Verdict) -> Figures:
    after = verdict.after
    return {
        "jobs": verdict.jobs,
        **{f"jobs {kind}": verdict.ends[kind] for kind in ("finished", "failed", "cancelled")},
        "jobs resumed in the middle": verdict.resumed,
        "jobs whose time did not come": verdict.asleep,
        "tokens": verdict.tokens,
        "ids used again after expiry": after["expiry"],
        "ids used again at once after cancel": after["cancel"],
        "ids used again at once after forget": after["forget"],
    }


def _processes(counts: Counter[str]) -> Figures:
    return {
        "workers started": counts["workers"],
        "worker kills (SIGKILL)": counts["worker kills"],
        "worker freezes beyond the lease": counts["worker freezes"],
        "workers frozen over a FLUSHALL": counts["frozen over a flush"],
        "frozen workers that woke in another life of their job": counts["woken in another life"],
        "worker drains (SIGTERM)": counts["worker drains"],
        "workers that found no server": counts["workers without a server"],
        "workers 9 to 10 days ahead": counts["workers ahead"],
        "workers 9 to 10 days behind": counts["workers behind"],
        "producers with such clocks": counts["producers with wrong clocks"],
        "producer kills": counts["producer kills"],
    }


def _server(counts: Counter[str], verdict: Verdict) -> Figures:
    return {
        "server restarts": counts["server restarts"],
        "server kills": counts["server kills"],
        "limits on idle connections": counts["idle limits"],
        "FLUSHALL": counts["flushes"],
        "jobs unfinished at a FLUSHALL": verdict.unfinished,
        "jobs sent again after it": verdict.after["flush"],
        "entries that outlived their records in it": verdict.swept,
    }


def _links(counts: Counter[str], links: Links) -> Figures:
    return {
        "replies swallowed": links.total("swallowed"),
        "requests delayed": links.total("delayed"),
        "cuts": counts["cuts"],
        "connections cut by them": counts["connections cut"],
        "requests cut in the middle": links.total("cut_requests"),
        "replies cut in the middle": links.total("cut_replies"),
        "slow links": counts["slow links"],
    }
