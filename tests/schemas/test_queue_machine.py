"""Whatever is done to jobs in whatever order: none is lost, doubled, or left behind.

Producers and workers made of the scripts alone act on a real server, late and stale ones too. A
plain model says what each script must answer.
"""

from __future__ import annotations

import os
import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
import redis
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from lua_worker import LuaWorker
from mlxq_schemas import GROUP, ExpiredEvent, Job, Retrying, Token, is_terminal

T = TypeVar("T")

FAR = 4e9
"""Unix seconds, long after now."""
LEASE_MS = 60_000
PICKS = st.integers(0, 10_000)


@dataclass(eq=False)
class Handle:
    """What one worker believes that it holds."""

    worker: LuaWorker
    name: str
    entry: bytes
    epoch: int


@dataclass
class Life:
    """What a job's record must say."""

    spec_delayed: bool
    state: str
    seq: int = 1
    epoch: int = 0
    attempts: int = 0
    deaths: int = 0
    errors: int = 0
    cancel: bool = False
    uncounted: bool = False
    due: float = FAR
    handle: Handle | None = None
    text: list[str] = field(default_factory=list[str])
    ends: list[str] = field(default_factory=list[str])

    @property
    def ended(self) -> bool:
        return self.state not in {"queued", "delayed", "running"}

    def end(self, state: str) -> None:
        self.state = state
        self.ends.append(state)
        self.seq += 1


WEIGHTS = {
    "submit": 2,
    "submit_again": 1,
    "push_again_by_hand": 1,
    "cancel": 1,
    "revive": 3,
    "forget": 1,
    "take": 6,
    "append": 6,
    "begin": 2,
    "finish": 3,
    "retry": 2,
    "hand_back": 1,
    "die_and_be_taken_over": 5,
    "reclaim": 2,
    "promote": 4,
}
NEEDS = {
    **dict.fromkeys(["submit_again", "push_again_by_hand", "cancel", "promote"], "lives"),
    **dict.fromkeys(["append", "begin", "finish", "retry", "hand_back"], "handles"),
    "die_and_be_taken_over": "handles",
    **dict.fromkeys(["revive", "forget"], "letters"),
}


class QueueMachine(RuleBasedStateMachine):
    """Three workers, and producers, on one queue."""

    client: redis.Redis

    def __init__(self) -> None:
        super().__init__()
        queue = f"t-{uuid.uuid4().hex[:12]}"
        self.workers = [LuaWorker(self.client, queue, f"w{i}") for i in range(3)]
        self.any = self.workers[0]
        self.keys = self.any.keys
        self.any.read()  # makes the group
        self.lives: dict[str, Life] = {}
        self.handles: list[Handle] = []
        self.past_ends = self.forgotten = 0  # of jobs that were forgotten, and how many
        self.checked: dict[str, tuple[str, int, int, bool]] = {}
        self.words = 0

    @rule(action=st.sampled_from(sorted(WEIGHTS)), pick=PICKS)
    def act(self, action: str, pick: int) -> None:
        """One action, if there is anything to do it to; ``pick`` says to what, and how."""
        if getattr(self, NEEDS.get(action, "workers")):
            getattr(self, action)(pick)

    @rule(seed=st.integers(0, 2**32))
    def act_a_while(self, seed: int) -> None:
        """Hypothesis alone seldom comes far from the start."""
        rng = random.Random(seed)
        for action in rng.choices(list(WEIGHTS), list(WEIGHTS.values()), k=20):
            self.act(action, rng.randrange(10_000))
            self.each_job_has_one_story_and_a_place()

    # Producers

    def submit(self, pick: int) -> None:
        delayed = pick % 4 == 0
        for _ in range(1 + pick % 2):
            name = f"j{len(self.lives) + self.forgotten}"
            assert self.send(name, delayed) == [b"ok"]
            self.lives[name] = Life(delayed, "delayed" if delayed else "queued")

    def submit_again(self, pick: int) -> None:
        name, life = self.one_of(self.lives, pick)
        delayed = pick % 2 == 0
        same = life.spec_delayed == delayed
        answer = [b"duplicate", life.state.encode()] if same else [b"conflict"]
        assert self.send(name, delayed) == answer

    def push_again_by_hand(self, pick: int) -> None:
        name, _ = self.one_of(self.lives, pick)
        self.client.xadd(self.keys.jobs(), {"id": name})

    def cancel(self, pick: int) -> None:
        unended = {name: life for name, life in self.lives.items() if not life.ended}
        name, life = self.one_of(unended or self.lives, pick)
        answer = self.any.cancel(name)
        if life.ended:
            assert answer == b"ended"
        elif life.state == "running":
            assert answer == b"asked"
            life.cancel = True
        else:
            assert answer == b"cancelled"
            life.end("cancelled")

    def revive(self, pick: int) -> None:
        name, row = self.one_of(self.letters, pick)
        life = self.lives[name]
        assert self.any.revive(name, row) == b"ok"
        assert self.any.revive(name, row) == b"gone"
        fresh = Life(life.spec_delayed, "queued", life.seq + 1, life.epoch, ends=life.ends)
        self.lives[name] = fresh

    def forget(self, pick: int) -> None:
        name, row = self.one_of(self.letters, pick)
        if any(fields[b"id"] == name.encode() for _, fields in self.entries()):
            return  # pushed again by hand: that entry would lead to nothing
        assert self.any.forget(name, row) == 1
        self.past_ends += len(self.lives.pop(name).ends)
        self.forgotten += 1

    # Workers

    def take(self, pick: int) -> None:
        worker = self.workers[pick % 3]
        for entry, name in worker.read(1 + pick % 4):
            self.claim(worker, name, entry)

    def reclaim(self, pick: int) -> None:
        worker = self.workers[pick % 3]
        found: Any = self.client.xautoclaim(
            self.keys.jobs(), GROUP, worker.name, LEASE_MS, "0-0", count=10
        )
        for entry, fields in found[1]:
            self.claim(worker, fields[b"id"].decode(), entry, taken_over=pick % 2 == 0)

    def die_and_be_taken_over(self, pick: int) -> None:
        handle = self.some_handle(pick)
        if self.live(handle):
            self.expire(handle)
            self.reclaim(pick)

    def append(self, pick: int) -> None:
        handle = self.some_handle(pick)
        token = self.word(handle.name)
        answer = handle.worker.append(handle.name, handle.epoch, token)
        if life := self.live(handle):
            life.text.append(token.text)
            life.seq += 1
        assert answer == (life.seq if life else -1)

    def begin(self, pick: int) -> None:
        handle = self.some_handle(pick)
        if life := self.live(handle):
            life.uncounted = False
        assert handle.worker.begin(handle.name, handle.epoch) == (1 if life else -1)

    def finish(self, pick: int) -> None:
        state = ("finished", "failed", "failed", "expired")[pick % 5 % 4]
        handle = self.some_handle(pick)
        life = self.live(handle)
        assert self.write_end(handle, state) == (1 if life else -1)
        if life:
            life.end(state)

    def retry(self, pick: int) -> None:
        handle = self.some_handle(pick)
        life = self.live(handle)
        last = [self.word(handle.name)] if pick % 2 else []
        answer = handle.worker.retry(handle.name, handle.epoch, handle.entry, *last, due=FAR)
        assert answer == (1 if life else -1)
        if life:
            life.text += [token.text for token in last]
            life.seq += len(last) + 1
            life.errors += 1
            life.state, life.due = "delayed", 0.0 if life.cancel else FAR

    def hand_back(self, pick: int) -> None:
        handle = self.some_handle(pick)
        life = self.live(handle)
        answer = handle.worker.hand_back(handle.name, handle.epoch, handle.entry)
        assert answer == (1 if life else -1)
        if life:
            life.epoch += 1
            life.uncounted = True

    def promote(self, pick: int) -> None:
        waiting = {name: life for name, life in self.lives.items() if life.state == "delayed"}
        self.move(self.one_of(waiting or self.lives, pick)[0], FAR + 1 if pick % 3 else 1.0)

    # What must hold

    @invariant()
    def each_job_has_one_story_and_a_place(self) -> None:
        for name, life in self.lives.items():
            look = (life.state, life.seq, life.epoch, life.uncounted)
            if self.checked.get(name) != look:  # all once more at the end
                self.check(name, life)
                self.checked[name] = look
        running = [life for life in self.lives.values() if life.state == "running"]
        assert self.client.xpending(self.keys.jobs(), GROUP)["pending"] == len(running)

    def check(self, name: str, life: Life) -> None:
        events = self.any.events(name)
        assert [event.seq for event in events] == list(range(life.seq))
        ends = [i for i, event in enumerate(events) if is_terminal(event)]
        assert [events[i].type for i in ends] == life.ends
        restarts = [i for i, e in enumerate(events) if isinstance(e, Retrying) and e.restart]
        goes_on = [i + 1 for i in ends if i + 1 < len(events)]
        assert goes_on == restarts
        since = events[restarts[-1] if restarts else 0 :]
        assert [e.text for e in since if isinstance(e, Token)] == life.text
        assert bool(self.client.exists(self.keys.result(name))) == life.ended
        known = self.any.state(name)
        lasting = [self.keys.job(name), self.keys.events(name)]
        if life.ended:
            result = self.any.result(name)
            assert (result.type, result.seq) == (life.state, life.seq - 1)
            assert min(map(self.client.ttl, [*lasting, self.keys.result(name)])) > 0
        else:
            assert [*map(self.client.ttl, lasting)] == [-1, -1]
        due = life.due if life.state == "delayed" else None
        assert self.client.zscore(self.keys.delayed, name) == due
        if life.state in {"queued", "running"}:
            assert self.client.xrange(self.keys.jobs(), known["entry"], known["entry"])
        if life.state == "running":
            assert ("uncounted" in known) == life.uncounted
        assert known["state"] == life.state

    def teardown(self) -> None:
        try:
            self.drain()
            self.nothing_is_left()
        finally:
            keys = list(self.client.scan_iter(f"{self.keys.prefix}:*", count=1000))
            if keys:
                self.client.delete(*keys)

    def drain(self) -> None:
        """End everything."""
        for _ in range(4):
            for name, life in self.lives.items():
                self.move(name, FAR + 1)
                if life.handle and self.live(life.handle):
                    assert self.write_end(life.handle, "finished") == 1
                    life.end("finished")
            for entry, name in self.workers[1].read(100):
                self.claim(self.workers[1], name, entry)
            self.reclaim(2)
        self.checked.clear()
        self.each_job_has_one_story_and_a_place()

    def nothing_is_left(self) -> None:
        assert all(life.ended for life in self.lives.values()), self.lives
        assert self.any.depth() == 0
        assert self.client.xpending(self.keys.jobs(), GROUP)["pending"] == 0
        ends = self.past_ends + sum(len(life.ends) for life in self.lives.values())
        assert self.client.xlen(self.keys.results) == ends
        permanent = {self.keys.jobs(), self.keys.results, self.keys.dead}
        for key in self.client.scan_iter(f"{self.keys.prefix}:*", count=1000):
            assert key.decode() in permanent or self.client.ttl(key) > 0, key

    # Steps of the rules

    def live(self, handle: Handle) -> Life | None:
        """The job of a handle that is the valid one."""
        life = self.lives.get(handle.name)
        valid = life is not None and life.state == "running" and life.epoch == handle.epoch
        return life if valid and life is not None and life.handle is handle else None

    def claim(
        self, worker: LuaWorker, name: str, entry: bytes, *, taken_over: bool = False
    ) -> None:
        life = self.lives[name]
        answer = worker.claim(name, entry, taken_over=taken_over)
        held = life.handle.entry if life.handle and life.state == "running" else entry
        if life.ended or life.state == "delayed" or held != entry:
            assert answer == [b"gone"]
            return
        if life.state == "running" and not life.uncounted:
            before = life.handle.worker if life.handle else None
            life.deaths += taken_over or before is not worker
        life.attempts += 1
        life.epoch += 1
        life.state, life.uncounted = "running", life.deaths == 2
        word, epoch, attempts, deaths, seq, _, _, cancel, errors = answer
        assert word == (b"alone" if life.deaths == 2 else b"ok")
        assert (epoch, attempts, deaths) == (life.epoch, life.attempts, life.deaths)
        assert (seq, cancel, errors) == (life.seq, b"%d" % life.cancel, life.errors)
        life.handle = Handle(worker, name, entry, epoch)
        self.handles.append(life.handle)

    def write_end(self, handle: Handle, state: str) -> int:
        code = "broken" if state == "failed" else ""
        event = ExpiredEvent(job=handle.name) if state == "expired" else None
        return handle.worker.finish(handle.name, handle.epoch, handle.entry, "", code, event)

    def expire(self, handle: Handle) -> None:
        self.client.xclaim(
            self.keys.jobs(), GROUP, handle.worker.name, 0, [handle.entry], idle=10**9, justid=True
        )

    @property
    def letters(self) -> dict[str, bytes]:
        """Rows of the dead letters by job."""
        rows = {f[b"id"].decode(): row for row, f in self.client.xrange(self.keys.dead)}
        assert all(self.lives[name].state == "failed" for name in rows)
        return rows

    def send(self, name: str, delayed: bool) -> list[bytes]:
        return self.any.submit(Job(id=name, prompt="p", not_before=FAR if delayed else None))

    def move(self, name: str, now: float) -> None:
        life = self.lives[name]
        moves = life.state == "delayed" and life.due <= now
        assert self.any.promote(name, now) == int(moves)
        if moves:
            life.state = "queued"

    def word(self, name: str) -> Token:
        self.words += 1
        return Token(job=name, text=f"{self.words} ")

    def some_handle(self, pick: int) -> Handle:
        """A valid one if there is one, but now and then a stale one."""
        valid = [handle for handle in self.handles if self.live(handle)]
        among = valid if valid and pick % 4 else self.handles
        return among[pick % len(among)]

    @staticmethod
    def one_of(things: dict[str, T], pick: int) -> tuple[str, T]:
        return sorted(things.items())[pick % len(things)]

    def entries(self) -> list[Any]:
        return self.client.xrange(self.keys.jobs())


def run(client: redis.Redis, examples: int, steps: int) -> None:
    kind: Callable[[], QueueMachine] = type("Machine", (QueueMachine,), {"client": client})
    run_state_machine_as_test(
        kind, settings=settings(max_examples=examples, stateful_step_count=steps)
    )


def test_no_order_of_events_loses_or_doubles_a_job(redis_client: redis.Redis) -> None:
    run(redis_client, 25, 10)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_long_order_of_events_does_either(redis_client: redis.Redis) -> None:
    run(redis_client, 50 if os.environ.get("MLXQ_TEST_SHORT") else 1000, 40)
