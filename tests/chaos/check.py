"""The judgement from outside: plain redis-py and msgpack, none of our code.

Every life that a producer was promised, and every other that the server knows, must have its
whole story there: events numbered without gap or repeat, one end, one result, one results row,
the text that the model says alone, and nothing of a former life of its id. What a FLUSHALL found
unfinished must have been sent again, and so must have ended once afterwards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import redis

from chaos.diary import Life, Lives
from chaos.records import ENDS, Record, Snapshot, snapshot
from chaos.story import StoryJudge

PERMANENT = {"results", "dead", "delayed", "workers", "jobs:high", "jobs:normal", "jobs:low"}
NO_TTL = -1
ORPHAN = "bad_message"
"""Code of a job whose entry was read before a FLUSHALL and claimed after it."""

Place = tuple[str, int, int]
"""Id, number of the life, age of the server."""


@dataclass
class Verdict:
    """``problems`` names each job that is lost, doubled or wrong, and each key left over.

    ``mixed`` counts stories with events of another life in them. ``unfinished``: lives that a
    FLUSHALL ended, ``swept``: entries that outlived their records there.
    """

    jobs: int = 0
    tokens: int = 0
    resumed: int = 0
    restarted: int = 0
    unfinished: int = 0
    swept: int = 0
    ends: Counter[str] = field(default_factory=Counter[str])
    after: Counter[str] = field(default_factory=Counter[str])
    asleep: int = 0
    lost: int = 0
    doubled: int = 0
    wrong: int = 0
    mixed: int = 0
    left_over: int = 0
    problems: list[str] = field(default_factory=list[str])

    @property
    def clean(self) -> bool:
        return not (self.lost or self.doubled or self.wrong or self.mixed or self.left_over)


class Checker:
    """Looks at one queue after all has ended; ``flushed`` is what each FLUSHALL took away."""

    def __init__(
        self,
        client: redis.Redis,
        queue: str,
        pool: Mapping[str, dict[str, Any]],
        lives: Lives,
        flushed: Sequence[Snapshot] = (),
    ) -> None:
        self._client = client
        self._prefix = f"mlxq:{{{queue}}}:"
        self._lives = lives
        self._last = snapshot(client, queue)
        self._ages = {shot.age: shot for shot in [*flushed, self._last]}
        self._stories = StoryJudge(pool, lives)
        self._ended: Counter[tuple[str, int]] = Counter()  # by id and age
        self.verdict = Verdict()

    def check(self) -> Verdict:
        """Every life, every row, then what is left over."""
        records = dict(self._records())
        for (job_id, number, age), record in sorted(records.items()):
            self._record(self._lives.found.get((job_id, number)), age, record)
        for life in self._lives:
            self._promise(life, {p[2]: r for p, r in records.items() if p[:2] == _name(life)})
        for age, shot in self._ages.items():
            self._rows(age, shot)
        self._dead_letters(records)
        self._streams()
        self._litter()
        return self.verdict

    def _records(self) -> Iterator[tuple[Place, Record]]:
        """Of each place what was seen last."""
        for life in self._lives:
            for age, record in life.stories:
                yield (*_name(life), age), record
        for age, shot in self._ages.items():
            for record in shot.records:
                yield (record.job_id, self._number(record), age), record

    def _number(self, record: Record) -> int:
        """The life of a record; one that does not say is of the only one that was pushed."""
        return record.life or int(record.spec is not None)

    def _note(self, kind: str, name: str, why: str) -> None:
        setattr(self.verdict, kind, getattr(self.verdict, kind) + 1)
        self.verdict.problems.append(f"{kind}: {name}: {why}"[:1000])

    def _record(self, life: Life | None, age: int, record: Record) -> None:
        job_id = record.job_id
        if record.spec is None:
            self._without_spec(age, record)
            return
        if life is None:
            self._ended[job_id, age] += _has_ended(record)
            self._note("wrong", job_id, f"life {record.life}, which nobody sent")
            return
        name = f"{job_id} life {life.number}"
        found = self._stories.judge(life, age, record)
        if found.ends:
            self._ended[job_id, age] += 1
            self._count(life, record, found.tokens, found.restarts)
        elif age == self._last.age:
            kept = {key: value for key, value in record.kept.items() if key != "spec"}
            self._note("lost", name, f"0 ends, result {record.result is not None}, {kept}")
        else:
            self.verdict.unfinished += 1
        for kind, why in found.faults:
            self._note(kind, name, f"{why}; {_outline(record)}")

    def _count(self, life: Life, record: Record, tokens: int, restarts: int) -> None:
        verdict, end = self.verdict, record.events[-1]
        verdict.jobs += 1
        verdict.after[life.after] += 1
        verdict.asleep += life.asleep
        verdict.ends[end["type"]] += 1
        verdict.tokens += tokens
        verdict.resumed += end.get("attempt", 0) > 1 and tokens > 0
        verdict.restarted += restarts

    def _without_spec(self, age: int, record: Record) -> None:
        """An entry may outlive its record in a FLUSHALL; then it fails, and nothing more."""
        events = record.events
        ends = [event for event in events if event["type"] in ENDS]
        codes = [event.get("code") for event in ends]
        swept = age and codes == [ORPHAN] and len(events) <= 2
        again = age and not codes and age != self._last.age  # the next FLUSHALL came at once
        if not record.kept:
            self._note("mixed", record.job_id, f"events without a job: {_outline(record)}")
        elif not (swept or again):
            self._note("lost", record.job_id, f"no spec: {record.kept}, {_outline(record)}")

    def _promise(self, life: Life, records: Mapping[int, Record]) -> None:
        """What was accepted is there, ended, or was sent again after a FLUSHALL."""
        name = f"{life.job_id} life {life.number}"
        if life.gone is not None and life.gone == life.age:
            self._note("lost", name, "its reader was told that there is no such job")
        if not life.accepted:
            return
        ended = {age: record for age, record in records.items() if _has_ended(record)}
        following = self._lives.found.get((life.job_id, life.number + 1))
        if not records:
            self._note("lost", name, "accepted, but nowhere seen")
        elif not ended and self._last.age not in records and not _accepted(following):
            self._note("lost", name, "unfinished at a FLUSHALL and not sent again")
        if len(ended) > 1 and min(ended) > life.age:
            self._note("doubled", name, f"ended in the ages {sorted(ended)}")
        if life.read is not None and not any(map(_as_read(life), ended.values())):
            read = {**life.read, "text": life.read["text"][:200]}
            self._note("wrong", name, f"read as {read}")

    def _rows(self, age: int, shot: Snapshot) -> None:
        """One row for each end; what a FLUSHALL swept away has its own, and a dead letter."""
        ids = {job_id for job_id, at in self._ended if at == age} | set(shot.rows)
        for job_id in sorted(ids):
            ended, rows = self._ended[job_id, age], shot.rows[job_id]
            swept = shot.dead[job_id, ORPHAN] if age else 0
            self.verdict.swept += min(swept, max(0, rows - ended))
            if rows < ended:
                self._note("lost", job_id, f"{ended} ends, {rows} results rows")
            elif rows > ended + swept:
                self._note("doubled", job_id, f"{ended} ends, {rows} results rows")

    def _dead_letters(self, records: Mapping[Place, Record]) -> None:
        """One for each failure, until somebody forgets it."""
        failures: Counter[tuple[int, str, str]] = Counter()
        for (job_id, number, age), record in records.items():
            life = self._lives.found.get((job_id, number))
            end = record.events[-1] if _has_ended(record) else {}
            if life is not None and not life.forgotten and end.get("type") == "failed":
                failures[age, job_id, end["code"]] += 1
        for (age, job_id, code), count in failures.items():
            letters = self._ages[age].dead[job_id, code]
            if letters < count:
                self._note("lost", job_id, f"{count} times {code}, {letters} dead letters")

    def _streams(self) -> None:
        for priority in ("high", "normal", "low"):
            stream = f"{self._prefix}jobs:{priority}"
            if not self._client.exists(stream):
                continue
            left = self._client.xlen(stream)
            groups: Any = self._client.xinfo_groups(stream)
            pending = sum(group["pending"] for group in groups)
            if left or pending:
                self._note("left_over", stream, f"{left} entries, {pending} pending")
            self._consumers(stream, [group["name"] for group in groups])
        if delayed := self._client.zcard(f"{self._prefix}delayed"):
            self._note("left_over", "delayed", f"{delayed} jobs")

    def _consumers(self, stream: str, groups: Sequence[Any]) -> None:
        for group in groups:
            rows: Any = self._client.xinfo_consumers(stream, group)
            for row in rows:
                if row["pending"]:
                    why = f"consumer {row['name']} has {row['pending']} pending"
                    self._note("left_over", stream, why)

    def _litter(self) -> None:
        for key in self._client.scan_iter(f"{self._prefix}*", count=1000):
            name = key.decode().removeprefix(self._prefix)
            if name not in PERMANENT and self._client.ttl(key) == NO_TTL:
                self._note("left_over", name, "a key that will stay for ever")


def _accepted(life: Life | None) -> bool:
    return life is not None and life.accepted


def _as_read(life: Life) -> Callable[[Record], bool]:
    """Whether what its reader got is what a record holds."""
    read = life.read or {}

    def same(record: Record) -> bool:
        events = record.events
        text = "".join(event["text"] for event in events if event["type"] == "token")
        return read["seqs"] == list(range(len(events))) and read["text"] == text

    return same


def _name(life: Life) -> tuple[str, int]:
    return life.job_id, life.number


def _has_ended(record: Record) -> bool:
    return any(event["type"] in ENDS for event in record.events)


def _outline(record: Record) -> str:
    """The events of a record in short: number, type, attempt, worker."""
    steps = [
        f"{event.get('seq')} {event['type']} {event.get('attempt', 0)} {event.get('worker', '')}"
        for event in record.events
        if event["type"] != "token"
    ]
    return f"events but tokens: {', '.join(step.strip() for step in steps)}"
