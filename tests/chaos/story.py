"""Judges one record: is it the whole story of its life, and of no other?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgpack

from chaos.diary import Life, Lives
from chaos.records import ENDS, Record

_BY_A_WORKER: Final = {"started", "progress", "token", "retrying", "finished", "failed"}
"""Events that bear the number of a worker's attempt."""

NEAR: Final = 1e-3
"""Nats by which rounding may change a log probability."""

Fault = tuple[str, str]
"""A kind of :class:`chaos.check.Verdict`, and why."""


@dataclass
class Found:
    """What a record holds, and what is wrong with it."""

    ends: int
    tokens: int = 0
    restarts: int = 0
    faults: list[Fault] = field(default_factory=list[Fault])


class StoryJudge:
    """Knows the templates, and all lives."""

    def __init__(self, pool: Mapping[str, dict[str, Any]], lives: Lives) -> None:
        self._pool = pool
        self._lives = lives

    def judge(self, life: Life, age: int, record: Record) -> Found:
        """``age``: that of the server in which the record stood."""
        events = record.events
        tokens = sum(len(event.get("ids", ())) for event in events if event["type"] == "token")
        restarts = sum(event["type"] == "retrying" and event["restart"] for event in events)
        ends = [event for event in events if event["type"] in ENDS]
        found = Found(len(ends), tokens, restarts)
        found.faults += _numbers(record, events, len(ends)) or _attempts(events)
        if not found.faults:
            told = _told(events)
            text = "".join(event["text"] for event in told)
            found.faults += self._content(life, age, record, text)
            if not found.faults and ends and ends[-1]["type"] == "finished":
                found.faults += _tokens(ends[-1], told, self._pool[life.template])
        return found

    def _content(self, life: Life, age: int, record: Record, text: str) -> Iterator[Fault]:
        """What is wrong with the text or the outcome."""
        template = self._pool[life.template]
        whole = template.get("text", "")
        events = record.events
        end = events[-1] if events and events[-1]["type"] in ENDS else None
        if life.asleep and any(event["type"] in {"started", "token"} for event in events):
            yield "wrong", "it began before its time"
        elif end is None:
            if not whole.startswith(text):
                yield self._other_text(life, text, whole)
        elif record.result is None:
            yield "lost", "it has ended, but there is no result"
        else:
            yield from self._outcome(life, age, end, msgpack.unpackb(record.result), text)

    def _outcome(
        self, life: Life, age: int, end: dict[str, Any], result: dict[str, Any], text: str
    ) -> Iterator[Fault]:
        template = self._pool[life.template]
        whole = template.get("text", "")
        if result["type"] != end["type"] or result.get("text", "") != text:
            said = f"the result says {result['type']} {result.get('text', '')!r}"
            # Its own worker told it right: a token between was another's.
            stray = text != whole == result.get("text") and life.number > 1
            kind = "mixed" if stray else "wrong"
            yield kind, f"{said}, the events {end['type']} {text!r}"
        elif end["type"] == "finished":
            yield from self._finished(life, end, text, template)
        elif end["type"] == "failed":
            # A FLUSHALL may come between the pictures of a job and the job.
            late = end["code"] == "media_not_found" and age > life.age
            if not (template.get("code") == end["code"] == result["code"] or late):
                yield "wrong", f"failed: {end['code']}: {end['message']}"
        elif end["type"] != "cancelled" or not life.cancelled:
            yield "wrong", f"{end['type']}, {text!r} of {whole!r}"
        elif not whole.startswith(text):
            yield self._other_text(life, text, whole)

    def _finished(
        self, life: Life, end: dict[str, Any], text: str, template: dict[str, Any]
    ) -> Iterator[Fault]:
        if "code" in template:
            yield "wrong", f"finished, but should have failed with {template['code']}"
        elif life.asleep:
            yield "wrong", "finished before its time"
        elif text != template["text"] or end["text"] != text:
            yield self._other_text(life, text, template["text"], end["text"])
        elif end["reason"] != template["reason"]:
            yield "wrong", f"reason {end['reason']}, alone {template['reason']}"

    def _other_text(self, life: Life, text: str, whole: str, said: str | None = None) -> Fault:
        """A wrong text; it may be that of another life of the id."""
        seen = said or text
        others = [other for other in self._lives if other.job_id == life.job_id]
        for other in others if seen else ():
            theirs = self._pool[other.template].get("text", "")
            if theirs != whole and seen in theirs:
                return "mixed", f"says what life {other.number} says: {text!r}"
        ending = "" if said is None else f", finished {said!r}"
        return "wrong", f"tokens {text!r}{ending}, alone {whole!r}"


def _numbers(record: Record, events: list[dict[str, Any]], ends: int) -> list[Fault]:
    """Gaps, repeats, and what comes after the end."""
    numbers = [event["seq"] for event in events]
    if ends > 1 or (ends and events[-1]["type"] not in ENDS):
        return [("doubled", f"{ends} ends, the last event is {events[-1]['type']}")]
    if numbers != list(range(len(events))):
        return [("doubled", f"numbers {numbers}")]
    if [entry for entry, _ in record.entries] != [f"{n + 1}-0" for n in numbers]:
        return [("doubled", "the numbers of entries and events differ")]
    return []


def _attempts(events: list[dict[str, Any]]) -> list[Fault]:
    """Attempts follow one another, each by one worker; whatever breaks in is of another life."""
    current, workers = 0, dict[int, str]()
    for event in events:
        attempt, kind = event.get("attempt", 0), event["type"]
        if kind == "queued" and event["seq"]:
            return [("mixed", f"queued again at {event['seq']}")]
        if kind not in _BY_A_WORKER:
            continue
        if attempt < current:
            return [("mixed", f"{kind} {event['seq']} of attempt {attempt} after {current}")]
        current = attempt
        if kind == "started":
            if attempt in workers:
                two = f"{workers[attempt]} and {event['worker']}"
                return [("mixed", f"attempt {attempt} by {two}")]
            workers[attempt] = event["worker"]
    return []


def _told(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The token events since the last restart."""
    told: list[dict[str, Any]] = []
    for event in events:
        if event["type"] == "retrying" and event["restart"]:
            told = []
        elif event["type"] == "token":
            told.append(event)
    return told


def _tokens(
    end: dict[str, Any], told: list[dict[str, Any]], template: Mapping[str, Any]
) -> list[Fault]:
    """What is wrong with the ids of a text, their count, or their log probabilities."""
    if "ids" not in template:
        return []
    ids = [i for event in told for i in event["ids"]]
    if ids != template["ids"] or end["usage"]["completion_tokens"] != len(ids):
        return [("wrong", f"ids {ids}, alone {template['ids']}, usage {end['usage']}")]
    scored = [one for event in told for one in event.get("logprobs") or ()]
    values, right = [one["logprob"] for one in scored], template.get("logprobs", [])
    same = len(values) == len(right) and all(
        abs(value - alone) <= NEAR for value, alone in zip(values, right, strict=True)
    )
    if not same or [one["id"] for one in scored] != ids[: len(right)]:
        return [("wrong", f"log probabilities {scored}, alone {right}")]
    return []
