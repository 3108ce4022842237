"""One producer process: ``python -m chaos.producing`` submits batches and follows them to the end.

It writes a line to its diary before and after each step, so that whoever reads it knows what was
promised: ``{"try": id, "template": name}``, ``{"accepted": id}``, ``{"cancel": id}`` and
``{"read": id, "seqs": [...], "text": ...}``. It may be killed and started again at any time.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import redis

from chaos.templates import Template, data_uri
from mlxq_producer import Producer
from mlxq_producer.errors import SubmitErrors
from mlxq_schemas import Event, is_terminal
from mlxq_schemas.errors import QueueError, QueueUnavailable

T = TypeVar("T")


class Diary:
    """One JSON line a step; a line that a kill cut in two is not a line."""

    def __init__(self, path: Path) -> None:
        known = path.read_bytes() if path.exists() else b""
        self.steps = known.count(b"\n")
        self._file = path.open("ab", buffering=0)
        if known and not known.endswith(b"\n"):
            self._file.write(b"\n")

    def write(self, **step: Any) -> None:
        self._file.write(json.dumps(step).encode() + b"\n")


class Chaotic:
    """Submits good and toxic jobs in every way there is, cancels some, and reads their events."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._name: str = options.name
        self._diary = Diary(options.diary)
        self._rng = random.Random(f"{options.seed}-{options.name}-{self._diary.steps}")
        pool = json.loads(options.pool.read_text())
        self._good = [t for t in pool if "code" not in t]
        self._toxic = [t for t in pool if "code" in t]
        self._producer = Producer(options.url, options.queue)
        self._client = redis.Redis.from_url(options.url, socket_timeout=10.0)
        self._number = 0

    def batch(self) -> None:
        """Submit some jobs and see them end."""
        jobs = [self._new() for _ in range(self._rng.randint(3, 12))]
        for job_id, template in jobs:
            self._diary.write(**{"try": job_id, "template": template["name"]})
        pushed = [job for job in jobs if job[1].get("push")]
        sent = [job for job in jobs if not job[1].get("push")]
        accepted = [*self._submit(sent), *self._push(pushed)]
        for job_id in accepted:
            self._diary.write(accepted=job_id)
        for job_id in accepted:
            if self._rng.random() < 0.04:
                self._cancel(job_id)
        self._read(accepted)

    def _new(self) -> tuple[str, Template]:
        self._number += 1
        pool = self._toxic if self._rng.random() < 0.08 else self._good
        return f"{self._name}-{self._diary.steps}-{self._number}", self._rng.choice(pool)

    def _fields(self, job_id: str, template: Template) -> dict[str, Any]:
        chance = random.Random(job_id)  # the same again if it is sent again
        priority = chance.choice(("high", "normal", "normal", "low"))
        fields = {"id": job_id, "priority": priority, **template["fields"]}
        image = template.get("image")
        if image:
            inline = chance.random() < 0.3 and "code" not in template
            fields["images"] = [data_uri(image) if inline else image]
        return fields

    def _submit(self, jobs: list[tuple[str, Template]]) -> list[str]:
        waiting = {job_id: self._fields(job_id, template) for job_id, template in jobs}
        if self._rng.random() < 0.5:
            for fields in waiting.values():
                _insist(lambda fields=fields: self._producer.submit(fields))
            return list(waiting)
        while waiting:
            order = list(waiting)
            try:
                self._producer.submit_many(waiting.values())
            except SubmitErrors as errors:
                if not all(isinstance(e, QueueError) for e in errors.errors.values()):
                    raise
                waiting = {
                    i: waiting[i] for i, done in zip(order, errors.ids, strict=True) if not done
                }
                time.sleep(0.1)
            else:
                break
        return [job_id for job_id, _ in jobs]

    def _push(self, jobs: list[tuple[str, Template]]) -> list[str]:
        """By hand, in one transaction; after a lost reply nothing was promised."""
        pushed: list[str] = []
        for job_id, template in jobs:
            spec = b"\xc1" if template["fields"] is None else json.dumps(template["fields"])
            prefix = f"mlxq:{{{self._producer.queue}}}"
            try:
                with self._client.pipeline(transaction=True) as pipe:
                    pipe.hset(f"{prefix}:job:{job_id}", "spec", spec)
                    pipe.xadd(f"{prefix}:jobs:normal", {"id": job_id})
                    pipe.execute()
            except (redis.RedisError, OSError):
                continue
            pushed.append(job_id)
        return pushed

    def _cancel(self, job_id: str) -> None:
        time.sleep(self._rng.random())
        self._diary.write(cancel=job_id)
        _insist(lambda: self._producer.cancel(job_id))

    def _read(self, job_ids: list[str]) -> None:
        events: dict[str, list[Event]] = {job_id: [] for job_id in job_ids}
        try:
            _collect(events, self._producer.follow_many(job_ids))
        except QueueUnavailable:
            for job_id in job_ids:
                while not (events[job_id] and is_terminal(events[job_id][-1])):
                    self._go_on(events, job_id)
        for job_id, story in events.items():
            text = "".join(event.text for event in story if event.type == "token")
            self._diary.write(read=job_id, seqs=[event.seq for event in story], text=text)

    def _go_on(self, events: dict[str, list[Event]], job_id: str) -> None:
        try:
            start = len(events[job_id])
            _collect(events, self._producer.follow(job_id, from_seq=start))
        except QueueUnavailable:
            time.sleep(0.2)


def _collect(events: dict[str, list[Event]], source: Iterable[Event]) -> None:
    for event in source:
        events[event.job].append(event)


def _insist(attempt: Callable[[], T]) -> T:
    """Until the queue answers: every request of a producer may be repeated."""
    while True:
        try:
            return attempt()
        except QueueUnavailable:
            time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("url", "queue", "name", "seed"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("pool", "diary", "until"):
        parser.add_argument(f"--{name}", required=True, type=Path)
    options = parser.parse_args()
    chaotic = Chaotic(options)
    while not options.until.exists():
        chaotic.batch()


if __name__ == "__main__":
    main()
