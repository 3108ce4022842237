"""The judgement from outside: plain redis-py and msgpack, none of our code.

Every id that a producer was promised, and every other id that the server knows, must have its
whole story there: events numbered without gap or repeat, one end, one result, one results row,
and the text that the model says alone.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack
import redis

ENDS = {"finished", "failed", "cancelled", "expired"}
PERMANENT = {"results", "dead", "delayed", "workers", "jobs:high", "jobs:normal", "jobs:low"}
NO_TTL = -1


@dataclass
class Diaries:
    """What all producers wrote down: templates by id, ids promised, cancelled, and read."""

    templates: dict[str, str] = field(default_factory=dict[str, str])
    accepted: set[str] = field(default_factory=set[str])
    cancelled: set[str] = field(default_factory=set[str])
    read: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])

    @classmethod
    def of(cls, paths: Iterable[Path]) -> Diaries:
        found = cls()
        for line in (line for path in paths for line in path.read_bytes().splitlines()):
            try:
                step = json.loads(line)
            except ValueError:
                continue  # its writer was killed
            match step:
                case {"try": job_id, "template": name}:
                    found.templates[job_id] = name
                case {"accepted": job_id}:
                    found.accepted.add(job_id)
                case {"cancel": job_id}:
                    found.cancelled.add(job_id)
                case {"read": job_id}:
                    found.read[job_id] = step
                case _:
                    raise ValueError(f"not a step of a diary: {line!r}")
        return found


@dataclass
class Verdict:
    """``problems`` names each job that is lost, doubled or wrong, and each key left over."""

    jobs: int = 0
    tokens: int = 0
    resumed: int = 0
    restarted: int = 0
    ends: Counter[str] = field(default_factory=Counter[str])
    lost: int = 0
    doubled: int = 0
    wrong: int = 0
    left_over: int = 0
    problems: list[str] = field(default_factory=list[str])

    @property
    def clean(self) -> bool:
        return not (self.lost or self.doubled or self.wrong or self.left_over)


class Checker:
    """Looks at one queue after all has ended."""

    def __init__(
        self, client: redis.Redis, queue: str, pool: Mapping[str, dict[str, Any]], diaries: Diaries
    ) -> None:
        self._client = client
        self._prefix = f"mlxq:{{{queue}}}:"
        self._pool = pool
        self._diaries = diaries
        self.verdict = Verdict()

    def check(self) -> Verdict:
        """Every job, then what is left over."""
        rows = Counter(
            fields[b"id"].decode() for _, fields in self._client.xrange(f"{self._prefix}results")
        )
        known = {key.decode().removeprefix(f"{self._prefix}job:") for key in self._keys("job:*")}
        jobs = sorted(self._diaries.accepted | known)
        self.verdict.jobs = len(jobs)
        for job_id in jobs:
            self._job(job_id, rows[job_id])
        for job_id in set(rows) - set(jobs):
            self._note("doubled", job_id, "a results row of a job that nobody sent")
        self._streams()
        self._litter()
        return self.verdict

    def _keys(self, pattern: str) -> Iterator[bytes]:
        return self._client.scan_iter(f"{self._prefix}{pattern}", count=1000)

    def _note(self, kind: str, name: str, why: str) -> None:
        setattr(self.verdict, kind, getattr(self.verdict, kind) + 1)
        self.verdict.problems.append(f"{kind}: {name}: {why}")

    def _job(self, job_id: str, rows: int) -> None:
        entries: Any = self._client.xrange(f"{self._prefix}events:{job_id}")
        events = [msgpack.unpackb(fields[b"e"]) for _, fields in entries]
        stored = self._client.get(f"{self._prefix}result:{job_id}")
        ends = [event for event in events if event["type"] in ENDS]
        if not ends or stored is None or not rows:
            state = f"{len(ends)} ends, result {stored is not None}, {rows} results rows"
            kept = self._client.hgetall(f"{self._prefix}job:{job_id}")
            self._note("lost", job_id, f"{state}, {kept!r}"[:700])
            return
        numbers = [event["seq"] for event in events]
        if len(ends) > 1 or rows > 1 or events[-1]["type"] not in ENDS:
            self._note("doubled", job_id, f"{len(ends)} ends, {rows} results rows")
        elif numbers != list(range(len(events))):
            self._note("doubled", job_id, f"numbers {numbers}")
        elif [entry.decode() for entry, _ in entries] != [f"{n + 1}-0" for n in numbers]:
            self._note("doubled", job_id, "the numbers of entries and events differ")
        elif why := self._content(job_id, events, msgpack.unpackb(stored)):
            self._note("wrong", job_id, why)
        self._read(job_id, events)

    def _content(self, job_id: str, events: list[dict[str, Any]], result: dict[str, Any]) -> str:
        """What is wrong with the text or the outcome; "" if nothing is."""
        end, template = events[-1], self._pool[self._diaries.templates[job_id]]
        text = ""
        for event in events:
            if event["type"] == "retrying" and event["restart"]:
                text = ""
                self.verdict.restarted += 1
            text += event.get("text", "") if event["type"] == "token" else ""
        tokens = sum(len(event.get("ids", ())) for event in events if event["type"] == "token")
        self.verdict.ends[end["type"]] += 1
        self.verdict.tokens += tokens
        self.verdict.resumed += end.get("attempt", 0) > 1 and tokens > 0
        if result["type"] != end["type"] or result.get("text", "") != text:
            return f"the result says {result}, the events {end['type']} {text!r}"
        if end["type"] == "finished":
            return self._finished(end, text, template)
        if end["type"] == "failed":
            right = template.get("code") == end["code"] == result["code"]
            return "" if right else f"failed: {end['code']}: {end['message']}"
        asked = end["type"] == "cancelled" and job_id in self._diaries.cancelled
        whole = template.get("text", "")
        return "" if asked and whole.startswith(text) else f"{end['type']}, {text!r} of {whole!r}"

    def _finished(self, end: dict[str, Any], text: str, template: dict[str, Any]) -> str:
        if "code" in template:
            return f"finished, but should have failed with {template['code']}"
        if not end["text"] == text == template["text"]:
            return f"finished {end['text']!r}, tokens {text!r}, alone {template['text']!r}"
        if end["reason"] != template["reason"]:
            return f"reason {end['reason']}, alone {template['reason']}"
        return ""

    def _read(self, job_id: str, events: list[dict[str, Any]]) -> None:
        """What its reader got is what there is."""
        read = self._diaries.read.get(job_id)
        if read is None:
            return
        text = "".join(event["text"] for event in events if event["type"] == "token")
        if read["seqs"] != list(range(len(events))) or read["text"] != text:
            self._note("wrong", job_id, f"read as {read}")

    def _streams(self) -> None:
        for priority in ("high", "normal", "low"):
            stream = f"{self._prefix}jobs:{priority}"
            left = self._client.xlen(stream)
            there = self._client.exists(stream)
            pending = self._client.xpending(stream, "workers")["pending"] if there else 0
            if left or pending:
                self._note("left_over", stream, f"{left} entries, {pending} pending")
        if delayed := self._client.zcard(f"{self._prefix}delayed"):
            self._note("left_over", "delayed", f"{delayed} jobs")

    def _litter(self) -> None:
        for key in self._keys("*"):
            name = key.decode().removeprefix(self._prefix)
            if name not in PERMANENT and self._client.ttl(key) == NO_TTL:
                self._note("left_over", name, "a key that will stay for ever")
