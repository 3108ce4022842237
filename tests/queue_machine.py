"""Whatever is done to jobs in whatever order: none is lost, doubled, or left behind.

Producers and workers made of the scripts alone act on a real server, late and stale ones too: ids
are used again, records expire, the server forgets everything or its last writes, and its clock
is another's. A plain model says what each script must answer.
"""

from __future__ import annotations

import random
import uuid
from dataclasses import replace
from typing import Any, TypeVar

import redis
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
)

from lua_worker import How, LuaWorker
from mlxq_schemas import GROUP, ExpiredEvent, Job, Retrying, Token, is_terminal
from mlxq_schemas.keys import Priority
from queue_model import FAR, Handle, Life, Replica

T = TypeVar("T")

DUE = 1.0
"""Unix seconds, long before now."""
LEASE_MS = 60_000
PICKS = st.integers(0, 10_000)
STREAMS: tuple[Priority, Priority] = ("normal", "high")


WEIGHTS = {
    "submit": 3,
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
    "expire_record": 2,
    "flush": 1,
    "replicate": 1,
    "fail_over": 1,
    "clock_ahead": 1,
}
NEEDS = {
    **dict.fromkeys(["submit_again", "push_again_by_hand", "cancel", "promote"], "lives"),
    **dict.fromkeys(["append", "begin", "finish", "retry", "hand_back"], "handles"),
    **dict.fromkeys(["die_and_be_taken_over", "clock_ahead"], "handles"),
    **dict.fromkeys(["revive", "forget"], "letters"),
    "expire_record": "lives",
    "fail_over": "replica",
}


class QueueMachine(RuleBasedStateMachine):
    """Three workers, and producers, on one queue."""

    client: redis.Redis
    worker: type[LuaWorker] = LuaWorker

    def __init__(self) -> None:
        super().__init__()
        queue = f"t-{uuid.uuid4().hex[:12]}"
        self.workers = [self.worker(self.client, queue, f"w{i}") for i in range(3)]
        self.any = self.workers[0]
        self.keys = self.any.keys
        self.make_groups()
        self.lives: dict[str, Life] = {}
        self.handles: list[Handle] = []
        self.free: list[str] = []  # ids that may be used again
        self.used = 0  # ids ever used
        self.past_ends = 0  # of jobs whose records are gone
        self.replica: Replica | None = None
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
            if self.free and pick % 3:
                name = self.free.pop(pick % len(self.free))
            else:
                name = f"j{self.used}"
                self.used += 1
            self.words += 1
            life = Life(delayed, "delayed" if delayed else "queued", f"p{self.words}")
            assert self.send(name, life.prompt, delayed) == [b"ok"]
            self.lives[name] = life

    def submit_again(self, pick: int) -> None:
        name, life = self.one_of(self.lives, pick)
        delayed = pick % 2 == 0
        same = life.spec_delayed == delayed
        answer = [b"duplicate", life.state.encode()] if same else [b"conflict"]
        assert self.send(name, life.prompt, delayed) == answer

    def push_again_by_hand(self, pick: int) -> None:
        name, _ = self.one_of(self.lives, pick)
        self.client.xadd(self.keys.jobs(STREAMS[pick % 2]), {"id": name})

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
        row, (name, ours) = self.one_of(self.letters, pick)
        if not ours:
            assert self.any.revive(name, row) == b"lost"
            return
        life = self.lives[name]
        assert self.any.revive(name, row) == b"ok"
        assert self.any.revive(name, row) == b"gone"
        self.lives[name] = Life(
            life.spec_delayed, "queued", life.prompt, life.seq + 1, life.epoch, ends=life.ends
        )

    def forget(self, pick: int) -> None:
        row, (name, ours) = self.one_of(self.letters, pick)
        if ours and self.leads_somewhere(name):
            return  # pushed again by hand: that entry would lead to nothing
        assert self.any.forget(name, row) == 1
        if ours:
            self.forget_life(name)

    # Workers

    def take(self, pick: int) -> None:
        worker, priority = self.workers[pick % 3], STREAMS[pick % 5 == 0]
        for entry, name in worker.read(1 + pick % 4, priority):
            self.claim(worker, name, (priority, entry))

    def reclaim(self, pick: int) -> None:
        worker = self.workers[pick % 3]
        for priority in STREAMS:
            found: Any = self.client.xautoclaim(
                self.keys.jobs(priority), GROUP, worker.name, LEASE_MS, "0-0", count=10
            )
            for entry, fields in found[1]:
                how = "over" if pick % 2 else "again"
                self.claim(worker, fields[b"id"].decode(), (priority, entry), how)

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
        what = (handle.name, handle.epoch, handle.entry, *last)
        answer = handle.worker.retry(*what, due=FAR, priority=handle.priority)
        assert answer == (1 if life else -1)
        if life:
            life.text += [token.text for token in last]
            life.seq += len(last) + 1
            life.errors += 1
            life.state, life.due = "delayed", 0.0 if life.cancel else FAR

    def hand_back(self, pick: int) -> None:
        handle = self.some_handle(pick)
        life = self.live(handle)
        what = (handle.name, handle.epoch, handle.entry, handle.priority)
        answer = handle.worker.hand_back(*what)
        assert answer == (1 if life else -1)
        if life:
            life.epoch = int(self.any.state(handle.name)["epoch"])
            life.uncounted = True

    def promote(self, pick: int) -> None:
        waiting = {name: life for name, life in self.lives.items() if life.state == "delayed"}
        self.move(self.one_of(waiting or self.lives, pick)[0], comes_due=pick % 3 > 0)

    # The server

    def expire_record(self, pick: int) -> None:
        ended = {
            name: life
            for name, life in self.lives.items()
            if life.ended and not self.leads_somewhere(name)
        }
        if not ended:
            return
        name, _ = self.one_of(ended, pick)
        keys = self.keys
        self.client.delete(keys.job(name), keys.events(name), keys.result(name))
        self.forget_life(name)

    def flush(self, pick: int) -> None:
        """FLUSHALL. Workers go on in the belief that they hold what they held."""
        if pick % 3:
            return
        self.client.delete(*self.all_keys())
        self.make_groups()
        self.free += self.lives
        self.lives, self.checked, self.past_ends, self.replica = {}, {}, 0, None

    def replicate(self, pick: int) -> None:
        keys = {key: (self.dump(key), max(0, self.client.pttl(key))) for key in self.all_keys()}
        lives = {name: life.copy() for name, life in self.lives.items()}
        self.replica = Replica(keys, lives, self.past_ends)

    def fail_over(self, pick: int) -> None:
        """The replica takes over, without the last writes."""
        assert self.replica is not None
        self.client.delete(*self.all_keys())
        for key, (value, ttl) in self.replica.keys.items():
            self.client.restore(key, ttl, value)
        self.lives = {name: life.copy() for name, life in self.replica.lives.items()}
        self.past_ends, self.checked = self.replica.past_ends, {}
        self.free = [f"j{i}" for i in range(self.used) if f"j{i}" not in self.lives]

    def clock_ahead(self, pick: int) -> None:
        """A lease was given out by a server whose clock was ahead of this one's."""
        handle = self.some_handle(pick)
        if life := self.live(handle):
            life.epoch += 10**12
            life.handle = replace(handle, epoch=life.epoch)
            self.handles.append(life.handle)
            self.client.hset(self.keys.job(handle.name), "epoch", life.epoch)

    # What must hold

    @invariant()
    def each_job_has_one_story_and_a_place(self) -> None:
        for name, life in self.lives.items():
            look = (life.state, life.seq, life.epoch, life.uncounted)
            if self.checked.get(name) != look:  # all once more at the end
                self.check(name, life)
                self.checked[name] = look
        running = [life for life in self.lives.values() if life.state == "running"]
        assert self.pending() == len(running)

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
            assert self.client.xrange(known["stream"], known["entry"], known["entry"])
        if life.state == "running":
            assert ("uncounted" in known) == life.uncounted
        assert known["state"] == life.state

    def teardown(self) -> None:
        try:
            self.drain()
            self.nothing_is_left()
        finally:
            if keys := self.all_keys():
                self.client.delete(*keys)

    def drain(self) -> None:
        """End everything."""
        for _ in range(4):
            for name, life in self.lives.items():
                self.move(name, comes_due=True)
                if life.handle and self.live(life.handle):
                    assert self.write_end(life.handle, "finished") == 1
                    life.end("finished")
            for priority in STREAMS:
                for entry, name in self.workers[1].read(100, priority):
                    self.claim(self.workers[1], name, (priority, entry))
            self.reclaim(2)
        self.checked.clear()
        self.each_job_has_one_story_and_a_place()

    def nothing_is_left(self) -> None:
        assert all(life.ended for life in self.lives.values()), self.lives
        assert (self.any.depth(), self.pending()) == (0, 0)
        ends = self.past_ends + sum(len(life.ends) for life in self.lives.values())
        assert self.client.xlen(self.keys.results) == ends
        permanent = {*map(self.keys.jobs, STREAMS), self.keys.results, self.keys.dead}
        for key in self.all_keys():
            assert key.decode() in permanent or self.client.ttl(key) > 0, key

    # Steps of the rules

    def live(self, handle: Handle) -> Life | None:
        """The job of a handle that is the valid one."""
        life = self.lives.get(handle.name)
        valid = life is not None and life.state == "running" and life.epoch == handle.epoch
        return life if valid and life is not None and life.handle is handle else None

    def claim(
        self, worker: LuaWorker, name: str, place: tuple[Priority, bytes], how: How = "new"
    ) -> None:
        life = self.lives[name]
        priority, entry = place
        answer = worker.claim(name, entry, how, priority)
        held = life.handle.place if life.handle and life.state == "running" else place
        if life.ended or life.state == "delayed" or held != place:
            assert answer == [b"gone"]
            return
        if life.state == "running" and not life.uncounted:
            before = life.handle.worker if life.handle else None
            life.deaths += how != "new" and before is not worker
        life.attempts += 1
        word, epoch, attempts, deaths, seq, _, _, cancel, errors, _ = answer
        assert epoch > life.epoch
        life.epoch = epoch
        life.state, life.uncounted = "running", life.deaths == 2
        assert word == (b"alone" if life.deaths == 2 else b"ok")
        assert (attempts, deaths) == (life.attempts, life.deaths)
        assert (seq, cancel, errors) == (life.seq, b"%d" % life.cancel, life.errors)
        life.handle = Handle(worker, name, priority, entry, epoch)
        self.handles.append(life.handle)

    def write_end(self, handle: Handle, state: str) -> int:
        code = "broken" if state == "failed" else ""
        event = ExpiredEvent(job=handle.name) if state == "expired" else None
        what = (handle.name, handle.epoch, handle.entry, "", code, event, handle.priority)
        return handle.worker.finish(*what)

    def expire(self, handle: Handle) -> None:
        stream, owner = self.keys.jobs(handle.priority), handle.worker.name
        self.client.xclaim(stream, GROUP, owner, 0, [handle.entry], idle=10**9, justid=True)

    def forget_life(self, name: str) -> None:
        self.past_ends += len(self.lives.pop(name).ends)
        self.free.append(name)
        self.checked.pop(name, None)

    @property
    def letters(self) -> dict[bytes, tuple[str, bool]]:
        """Dead letters by row: the id, and whether the job of this id is the one that died."""
        found: dict[bytes, tuple[str, bool]] = {}
        for row, fields in self.client.xrange(self.keys.dead):
            name = fields[b"id"].decode()
            life = self.client.hget(self.keys.job(name), "life")
            ours = name in self.lives and life == fields[b"life"]
            assert not ours or self.lives[name].state == "failed"
            found[row] = name, ours
        return found

    def send(self, name: str, prompt: str, delayed: bool) -> list[bytes]:
        return self.any.submit(Job(id=name, prompt=prompt, not_before=FAR if delayed else None))

    def move(self, name: str, *, comes_due: bool) -> None:
        life = self.lives[name]
        if comes_due and life.state == "delayed":
            self.any.come_due(name)
            life.due = DUE
        moves = life.state == "delayed" and life.due <= DUE
        assert self.any.promote(name) == int(moves)
        if moves:
            life.state = "queued"

    def word(self, name: str) -> Token:
        self.words += 1
        return Token(job=name, text=f"{self.words} ")

    def some_handle(self, pick: int) -> Handle:
        """A valid one if there is one, but now and then a stale one, rather a late one."""
        valid = [handle for handle in self.handles if self.live(handle)]
        among = valid if valid and pick % 4 else self.handles[-20:]
        return among[pick % len(among)]

    @staticmethod
    def one_of(things: dict[Any, T], pick: int) -> tuple[Any, T]:
        return sorted(things.items(), key=lambda item: item[0])[pick % len(things)]

    def leads_somewhere(self, name: str) -> bool:
        """True if an entry of this id waits to be read."""
        streams = map(self.keys.jobs, STREAMS)
        rows = (row for stream in streams for row in self.client.xrange(stream))
        return any(fields[b"id"] == name.encode() for _, fields in rows)

    def pending(self) -> int:
        counts = (self.client.xpending(self.keys.jobs(name), GROUP) for name in STREAMS)
        return sum(count["pending"] for count in counts)

    def make_groups(self) -> None:
        for priority in STREAMS:
            self.any.read(priority=priority)

    def all_keys(self) -> list[bytes]:
        return list(self.client.scan_iter(f"{self.keys.prefix}:*", count=1000))

    def dump(self, key: bytes) -> bytes:
        value = self.client.dump(key)
        assert isinstance(value, bytes)
        return value
