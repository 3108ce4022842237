"""One producer process: ``python -m chaos.producing`` submits batches and follows them to the end.

It writes a line to its diary before and after each step (see :mod:`chaos.diary`), so that whoever
reads it knows what was promised. It may be killed and started again at any time; then it takes up
the jobs whose end it has not seen. It sends again what a FLUSHALL took away, and uses ids again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import redis

from chaos.diary import Diary, Life
from chaos.reading import Story, gather
from chaos.records import AGE, expire, read_record
from chaos.templates import Template, data_uri
from mlxq_producer import Producer
from mlxq_producer.errors import SubmitErrors
from mlxq_schemas.errors import Conflict, QueueError, QueueUnavailable, UnknownJob

T = TypeVar("T")

MOST_LIVES: Final = 4
"""Of one id, but for those that a FLUSHALL ended."""
PATIENCE: Final = 60.0
"""Seconds until an id must be free again after its record has expired."""
HOUR: Final = 3600.0


class Chaotic:
    """Submits good and toxic jobs in every way there is, cancels some, and reads their events."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._name: str = options.name
        self._shift: float = options.shift
        self._without = set(options.without.split(","))
        self._diary = Diary(options.diary)
        self._rng = random.Random(f"{options.seed}-{options.name}-{self._diary.steps}")
        pool = json.loads(options.pool.read_text())
        self._pool = {template["name"]: template for template in pool}
        self._good = [t for t in pool if "code" not in t]
        self._toxic = [t for t in pool if "code" in t]
        self._producer = Producer(options.url, options.queue)
        self._client = redis.Redis.from_url(options.url, socket_timeout=10.0)
        self._number = 0

    def take_up(self) -> None:
        """Go on with the jobs of a former process that was killed."""
        lives: list[Life] = []
        for life in self._diary.lives.last():
            if life.gone is not None:
                lives.append(self._again(life))
            elif life.accepted and life.read is None:
                lives.append(life)
            elif not life.accepted and not self._template(life).get("push"):
                self._send_one(life)
                lives.append(life)
        self._see_off(lives)

    def batch(self) -> None:
        """Submit some jobs and see them end."""
        lives = [self._new() for _ in range(self._rng.randint(3, 12))]
        for life in lives:
            self._try(life)
        pushed = [life for life in lives if self._template(life).get("push")]
        sent = [life for life in lives if not self._template(life).get("push")]
        accepted = [*self._submit(sent), *self._push(pushed)]
        for life in accepted:
            self._diary.write("accepted", life)
        self._see_off(accepted)

    def _see_off(self, lives: list[Life]) -> None:
        """Cancel some, and read all to the end; then the same with those that follow them."""
        while lives:
            for life in lives:
                if life.asleep or self._rng.random() < 0.04:
                    self._cancel(life)
            lives = self._read(lives)

    # Jobs

    def _new(self) -> Life:
        self._number += 1
        pool = self._toxic if self._rng.random() < 0.08 else self._good
        name = f"{self._name}-{self._diary.steps}-{self._number}"
        return self._life(name, 1, self._rng.choice(pool))

    def _life(self, job_id: str, number: int, template: Template, after: str = "") -> Life:
        life = Life(job_id, number, template["name"], age=self._age(), after=after)
        now = time.time() - self._shift
        if "times" in self._without or "code" in template:
            return life
        chance = self._rng.random()
        if chance < 0.06:
            life.asleep, life.more = True, {"not_before": now + HOUR}
        elif chance < 0.3:
            life.more = {"deadline": now + HOUR}
        return life

    def _template(self, life: Life) -> Template:
        return self._pool[life.template]

    def _age(self) -> int:
        return int(self._ask(lambda: self._client.get(AGE)) or 0)

    def _fields(self, life: Life) -> dict[str, Any]:
        template = self._template(life)
        chance = random.Random(f"{life.job_id} {life.number}")  # the same again if sent again
        priority = chance.choice(("high", "normal", "normal", "low"))
        if life.after == "expiry" or life.asleep:
            # It runs when whoever had the former life wakes, or at once if it is let in early.
            priority = "high"
        fields = {"id": life.job_id, "priority": priority, **template["fields"], **life.more}
        fields["metadata"] = {"life": life.number}
        image = template.get("image")
        if image:
            inline = chance.random() < 0.3 and "code" not in template
            fields["images"] = [data_uri(image) if inline else image]
        return fields

    # Sending

    def _try(self, life: Life) -> None:
        more = {"template": life.template, "age": life.age, "more": life.more}
        self._diary.write("try", life, **more, asleep=life.asleep, after=life.after)

    def _submit(self, lives: list[Life]) -> list[Life]:
        waiting = {life.job_id: self._fields(life) for life in lives}
        if self._rng.random() < 0.5:
            for fields in waiting.values():
                _insist(lambda fields=fields: self._producer.submit(fields))
            return lives
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
        return lives

    def _send_one(self, life: Life) -> None:
        """Submit a job whose id may stand for another one for a moment yet."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                _insist(lambda: self._producer.submit(self._fields(life)))
                break
            except Conflict:
                if time.monotonic() > end:
                    raise
                time.sleep(0.005)
        self._diary.write("accepted", life)

    def _push(self, lives: list[Life]) -> list[Life]:
        """By hand, in one transaction; after a lost reply nothing was promised."""
        pushed: list[Life] = []
        for life in lives:
            bare = self._template(life)["fields"] is None
            spec = b"\xc1" if bare else json.dumps({**self._fields(life), "id": life.job_id})
            prefix = f"mlxq:{{{self._producer.queue}}}"
            try:
                with self._client.pipeline(transaction=True) as pipe:
                    pipe.hset(f"{prefix}:job:{life.job_id}", "spec", spec)
                    pipe.xadd(f"{prefix}:jobs:normal", {"id": life.job_id})
                    pipe.execute()
            except (redis.RedisError, OSError):
                continue
            pushed.append(life)
        return pushed

    def _cancel(self, life: Life) -> None:
        time.sleep(self._rng.uniform(2.0, 4.0) if life.asleep else self._rng.random())
        self._diary.write("cancel", life)
        life.cancelled = True
        with contextlib.suppress(UnknownJob):  # a FLUSHALL: its reader will be told the same
            _insist(lambda: self._producer.cancel(life.job_id))

    # Reading, and what comes after the end

    def _read(self, lives: list[Life]) -> list[Life]:
        """All events of these; returns the lives that follow them under their ids."""
        later: list[Life] = []
        for story in gather(self._producer, lives):
            next_life = self._after_end(story)
            if next_life is not None:
                later.append(next_life)
        return later

    def _after_end(self, story: Story) -> Life | None:
        life = story.life
        # An entry that was read before a FLUSHALL and is claimed after it has lost its record.
        if story.end is None or self._by_flush(story, "bad_message"):
            self._diary.write("gone", life, age=self._age())
            return self._again(life)
        self._diary.write("read", life, seqs=story.seqs, text=story.text)
        if self._by_flush(story, "media_not_found"):
            return self._reuse(life, "flush")
        if (
            "reuse" in self._without
            or life.number >= MOST_LIVES
            or self._template(life).get("push")
        ):
            return None
        if life.cancelled or story.end.type == "failed":
            likely, after = 0.7, "cancel" if life.cancelled else "forget"
        else:
            # One that lost a worker: if that one is frozen, it will wake in another life.
            likely, after = (0.9 if story.end.attempt > 1 else 0.2), "expiry"
        return self._reuse(life, after) if self._rng.random() < likely else None

    def _by_flush(self, story: Story, code: str) -> bool:
        """True if it failed with this code, which is not its own, and a FLUSHALL may be why."""
        failed = getattr(story.end, "code", None) == code
        own = self._template(story.life).get("code") == code
        return failed and not own and self._age() != story.life.age

    def _again(self, life: Life) -> Life:
        """Send again what a FLUSHALL took away: as it was, or as another job."""
        known = self._template(life)
        other = known.get("push") or self._rng.random() < 0.7
        return self._follow_up(life, self._other(life) if other else known, "flush")

    def _reuse(self, life: Life, after: str) -> Life | None:
        """Let the record end its time, or forget it; then use the id for another job at once."""
        if after == "forget" and (life.number > 1 or self._age() != life.age):
            after = "expiry"  # `drop_dead` takes the letters of all lives
        queue = self._producer.queue
        age, record = self._ask(lambda: read_record(self._client, queue, life.job_id))
        if record.spec is None or record.life != life.number:
            return None  # a FLUSHALL; its story is known
        self._diary.write("story", life, age=age, record=record.as_text())
        if after == "forget":
            self._diary.write("forget", life)
            _insist(lambda: self._producer.drop_dead(life.job_id))
        left = 1 if after == "cancel" else self._rng.randint(1, 300)
        self._ask(lambda: expire(self._client, queue, record, left))
        return self._follow_up(life, self._other(life), after)

    def _other(self, life: Life) -> Template:
        return self._rng.choice([t for t in self._good if t["name"] != life.template])

    def _follow_up(self, life: Life, template: Template, after: str) -> Life:
        following = self._life(life.job_id, life.number + 1, template, after)
        self._try(following)
        self._send_one(following)
        return following

    def _ask(self, attempt: Callable[[], T]) -> T:
        """The same as :func:`_insist`, for the plain client."""
        while True:
            try:
                return attempt()
            except (redis.ConnectionError, redis.TimeoutError, OSError):
                time.sleep(0.1)


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
    parser.add_argument("--without", default="", help="kinds of faults")
    parser.add_argument("--shift", default=0.0, type=float, help="seconds that the clock is ahead")
    options = parser.parse_args()
    chaotic = Chaotic(options)
    chaotic.take_up()
    while not options.until.exists():
        chaotic.batch()


if __name__ == "__main__":
    main()
