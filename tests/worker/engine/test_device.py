"""Errors of the device are nobody's: no row fails for them, and nothing that it spoilt is kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import pytest

from cache_session import BLUE, RED, Session, prepare, text
from mlxq_schemas import Sampling
from mlxq_schemas.errors import DeviceFailed
from mlxq_worker.cache.caches import LAYOUT
from mlxq_worker.cache.disk import DiskTier
from mlxq_worker.engine import recovery
from mlxq_worker.engine.recall import Recall
from mlxq_worker.engine.request import Request
from mlxq_worker.engine.slots import Slots
from mlxq_worker.models import caches
from mlxq_worker.models.device import MAX_FAULTS
from sick_device import EVER, MEMORY, OTHER, WORK, SickDevice

KINDS = ("llama", "qwen3_vl", "gemma3", "qwen3_5")
"""Keys and values of all tokens; with pictures; a sliding window; recurrent states."""


@pytest.fixture(scope="module", params=KINDS)
def subject(request, load):
    return load(request.param)


class Question:
    """Prompts with a common beginning, some of them asked once the device is well again."""

    def __init__(self, subject) -> None:
        start = text(1, 40)
        self.first = [
            prepare(subject, f"{start} one", {"red": RED}),
            prepare(subject, f"{start} two", {"blue": BLUE}),
            prepare(subject, text(2, 20), {}),
        ]
        self.second = [
            prepare(subject, f"{start} three", {"red": RED}),
            prepare(subject, f"{start} one {text(3, 30)}", {"blue": BLUE}),
        ]
        self.alone = subject.alone([*self.first, *self.second], 10)

    def answers(self, session: Session) -> None:
        """What a session says from now on must be right."""
        assert session.ask(*self.first, *self.second) == self.alone
        for prompt, want in zip(
            [*self.second, *self.first], self.alone[3:] + self.alone[:3], strict=True
        ):
            assert session.ask(prompt) == [want]


@pytest.fixture(scope="module")
def question(subject) -> Question:
    return Question(subject)


def start(subject, folder: Path, **options) -> Session:
    disk = DiskTier(folder, max_bytes=1 << 28, layout=LAYOUT, admit_at=1)
    settings = {"prefill_step": 128, "mixed_step": 64, "max_rows": 4, **options}
    return Session(subject, disk=disk, identity="m", **settings)


def moments(work: str) -> Iterator[tuple[int, int]]:
    """When and how often some work fails."""
    for after in (0, 2) if work in ("decode", "prefill") else (0, 1):
        for times in (1, MAX_FAULTS):
            yield after, times


@pytest.mark.parametrize("work", WORK)
def test_no_row_fails_and_no_text_is_wrong_afterwards(
    subject, question, monkeypatch, tmp_path, work
):
    if work == "encode" and not subject.shows:
        pytest.skip("takes no pictures")
    errors = [*OTHER, *MEMORY]
    for n, (after, times) in enumerate(moments(work)):
        session = start(subject, tmp_path / str(n))
        with monkeypatch.context() as patch:
            device = SickDevice(patch, session.generator)
            device.fail(work, after=after, times=times, error=errors[n])
            assert session.ask(*question.first) == question.alone[:3], (after, times)
            assert device.failed == device.raised == times, (after, times)
            assert session.generator.stats()["device_errors"] == times
            question.answers(session)
        session.generator.close()
        later = start(subject, tmp_path / str(n))
        question.answers(later)
        later.generator.close()


@pytest.mark.parametrize("error", [MEMORY[0], OTHER[0]])
@pytest.mark.parametrize("work", WORK)
def test_a_device_that_stays_sick_ends_the_work_and_loses_no_row(
    subject, question, monkeypatch, tmp_path, work, error
):
    if work == "encode" and not subject.shows:
        pytest.skip("takes no pictures")
    session = start(subject, tmp_path)
    generator = session.generator
    with monkeypatch.context() as patch:
        device = SickDevice(patch, generator)
        device.fail(work, after=1, times=EVER, error=error)
        step, said = generator.next, []

        def until_it_fails() -> list:
            try:
                return step()
            except DeviceFailed as failed:
                said.append(failed)
                device.heal()
                return []

        monkeypatch.setattr(generator, "next", until_it_fails)
        assert session.ask(*question.first) == question.alone[:3]
    assert len(said) == 1
    assert error in said[0].message
    assert generator.stats()["device_errors"] > MAX_FAULTS
    question.answers(session)
    generator.close()


MANY = 12


def busy(load, monkeypatch, room: int, **options) -> tuple[Session, list[int]]:
    """A session whose device has memory for so many rows; and the sizes of batches that ran."""
    subject = load("llama")
    session = Session(subject, **{"max_rows": MANY, **options})
    adapter, ran = session.generator._adapter, []
    decode = adapter.decode

    def limited(tokens, positions, cache):
        if tokens.size > room:
            raise RuntimeError(MEMORY[0])
        ran.append(tokens.size)
        return decode(tokens, positions, cache)

    monkeypatch.setattr(adapter, "decode", limited)
    return session, ran


def prompts(subject, count: int) -> list:
    return [prepare(subject, text(n, 6 + n), {}) for n in range(count)]


def test_memory_for_half_of_the_rows(load, monkeypatch):
    """Fewer rows at once, and nobody pays for it."""
    subject = load("llama")
    asked = prompts(subject, MANY)
    session, ran = busy(load, monkeypatch, 6)
    assert session.ask(*asked) == subject.alone(asked, 10)
    stats = session.generator.stats()
    assert stats["device_errors"] == 1
    assert stats["restarted"] == MANY
    assert max(ran) == 6


def test_a_device_that_is_well_again_gets_more(load, monkeypatch):
    subject = load("llama")
    monkeypatch.setattr(recovery, "PATIENCE", 3)
    session, ran = busy(load, monkeypatch, 6)
    asked = prompts(subject, MANY)
    want = subject.alone(asked, 60)
    assert session.ask(*asked, tokens=60) == want
    # It tries one more after 3 good steps, 6, 12, 24 ...
    assert 2 <= session.generator.stats()["device_errors"] <= 7
    assert max(ran) == 6
    assert sum(size == 6 for size in ran) > len(ran) // 2
    monkeypatch.undo()
    monkeypatch.setattr(recovery, "PATIENCE", 1)
    session, ran = busy(load, monkeypatch, MANY)
    SickDevice(monkeypatch, session.generator).fail("decode", after=3)
    assert session.ask(*asked, tokens=60) == want
    assert ran[-20:] != []
    assert max(ran[5:]) > MANY // 2


def test_a_job_too_large_for_the_device_ends_by_itself(load, monkeypatch):
    """It runs out of memory alone, while the others do not."""
    subject = load("llama")
    large, *others = [prepare(subject, text(9, 90), {}), *prompts(subject, 4)]
    session, _ = busy(load, monkeypatch, MANY)
    adapter = session.generator._adapter
    decode, most = adapter.decode, len(large.ids) - 1
    assert all(len(prompt.ids) < most - 10 for prompt in others)

    def limited(tokens, positions, cache):
        if positions.max() >= most:
            raise RuntimeError(MEMORY[1])
        return decode(tokens, positions, cache)

    monkeypatch.setattr(adapter, "decode", limited)
    sampling = Sampling(max_tokens=8)
    session.generator.insert(
        [
            Request(str(n), prepared=prompt, sampling=sampling)
            for n, prompt in enumerate([large, *others])
        ]
    )
    ends = {}
    while session.generator.has_work():
        for response in session.generator.next():
            if response.finished:
                ends[response.request_id] = response
    assert {name: end.finish_reason for name, end in ends.items()} == {
        "0": "error",
        **{str(n): "length" for n in range(1, 5)},
    }
    error = ends["0"].error
    assert error.code == "generation_failed"
    assert "too little memory" in error.message
    assert MEMORY[1] in error.message


def test_one_job_alone_does_not_tell_it_from_a_sick_device(load, monkeypatch):
    session, _ = busy(load, monkeypatch, 0)
    with pytest.raises(DeviceFailed):
        session.ask(prompts(load("llama"), 1)[0])
    assert session.generator.stats()["queued"] == 1


def failing(real, at: int = 1):
    """``real``, whose ``at``-th call meets an error of the device."""
    calls: list[int] = []

    def call(*args, **options):
        calls.append(1)
        if len(calls) == at:
            raise RuntimeError(OTHER[0])
        return real(*args, **options)

    return call


def plant(where: str, patch, generator, late: Request) -> None:
    """Let the error surface there, in the fourth step."""
    batched = type(
        type(generator._adapter.make_cache()[0]).merge(generator._adapter.make_cache()[:1])
    )
    if where == "look-up":
        patch.setattr(Recall, "ready", failing(Recall.ready))
    elif where == "processor":
        late.logits_processors = [failing(lambda tokens, logits: logits, at=3)]
    elif where == "keep":
        patch.setattr(Slots, "keep", failing(Slots.keep))
    elif where in ("merge", "extend"):
        patch.setattr(caches, where, failing(getattr(caches, where)))
    else:
        patch.setattr(batched, "filter", failing(batched.filter))
    if where == "abort":
        generator.abort("0")
    elif where == "remove":
        generator.remove([1])
    generator.insert([late])


@pytest.mark.parametrize(
    "where", ["look-up", "merge", "extend", "end", "keep", "abort", "remove", "processor"]
)
def test_wherever_it_surfaces_no_row_is_lost(load, monkeypatch, where):
    subject = load("qwen3_vl")
    asked = [prepare(subject, text(n, 12), {"red": RED} if n % 2 else {}) for n in range(5)]
    want = {str(n): subject.alone([prompt], 6 + n)[0] for n, prompt in enumerate(asked)}
    *first, late = [
        Request(str(n), prepared=prompt, sampling=Sampling(max_tokens=6 + n))
        for n, prompt in enumerate(asked)
    ]
    generator = Session(subject).generator
    generator.insert(first)
    said: dict[str, list[int]] = {name: [] for name in want}
    ends: dict[str, str | None] = {}
    step = 0
    while generator.has_work():
        step += 1
        if step == 4:
            plant(where, monkeypatch, generator, late)
        for response in generator.next():
            assert response.request_id not in ends
            if response.token is not None:
                said[response.request_id].append(response.token)
            if response.finished:
                ends[response.request_id] = response.finish_reason
    assert generator.stats()["device_errors"] == 1
    if where in ("abort", "remove"):
        assert ends.pop("0", "cancelled") == "cancelled"
        assert said.pop("0") == want.pop("0")[:2]
    assert said == want
    assert ends == dict.fromkeys(want, "length")


def test_a_row_that_starts_again_looks_its_pictures_up_anew(load):
    """The prefix that made them needless may be gone by then."""
    subject = load("qwen3_vl")
    prompt = prepare(subject, text(7, 60), {"red": RED})
    session = Session(subject)
    generator = session.generator
    [want] = session.ask(prompt)
    generator.insert([Request("a", prepared=prompt, sampling=Sampling(max_tokens=10))])
    generator._admit()
    [row] = generator._prefilling
    assert generator._recall.ready(row)
    assert row.vision is not None
    generator._send_back(row)
    generator._recall.make_room(generator._recall.nbytes)
    said = []
    while generator.has_work():
        said += [response.token for response in generator.next()]
    assert said == want


def test_what_is_not_proved_is_used_but_not_written(load, tmp_path):
    """Rows that begin in the next step find it already; the SSD gets it after good reads."""
    subject = load("llama")
    session = start(subject, tmp_path, max_rows=8)
    generator = session.generator
    shared = text(5, 60)
    asked = [prepare(subject, f"{shared} {n}", {}) for n in range(4)]
    sampling = Sampling(max_tokens=8)
    requests = [Request(str(n), prepared=p, sampling=sampling) for n, p in enumerate(asked)]
    generator.insert(requests[:1])
    while not generator.stats()["prefix_blocks"]:
        generator.next()
    stores = generator._recall._caches._stores
    assert stores[0].unproved
    assert generator.stats()["disk_waiting_bytes"] == generator.stats()["disk_blocks"] == 0
    generator.insert(requests[1:])
    cached = {}
    while generator.has_work():
        for response in generator.next():
            if response.usage:
                cached[response.request_id] = response.usage.cached_tokens
    assert all(cached[str(n)] > 0 for n in range(1, 4))
    assert not stores[0].unproved
    generator.close()
    assert generator.stats()["disk_written_blocks"] > 0


@pytest.mark.parametrize("closing", [False, True])
def test_a_device_that_fails_at_the_end_spoils_nothing(load, monkeypatch, tmp_path, closing):
    """In what is queued last, with no work behind it that would meet the error."""
    subject = load("llama")
    prompt = prepare(subject, text(8, 150), {})
    [want] = subject.alone([prompt], 10)
    session = start(subject, tmp_path)
    with monkeypatch.context() as patch:
        device = SickDevice(patch, session.generator)
        device.fail("store", after=0)
        session.generator.insert([Request("a", prepared=prompt, sampling=Sampling(max_tokens=9))])
        session.generator.next()
        assert session.generator.stats()["prefix_blocks"] > 0
        if not closing:
            session.generator.abort("a")
            assert [r.finish_reason for r in session.generator.next()] == ["cancelled"]
            assert device.raised == 1  # nothing is left to do: it was waited for
            assert session.generator.stats()["prefix_blocks"] == 0
            assert session.ask(prompt) == [want]
        session.generator.close()
        assert device.failed == device.raised == 1
    later = start(subject, tmp_path)
    assert later.ask(prompt) == [want]
    later.generator.close()


def test_the_steady_path_does_no_more(load, monkeypatch, tmp_path):
    """A step is one pass and one read, and nobody waits for the device but there."""
    subject = load("llama")
    session = start(subject, tmp_path)
    device = SickDevice(monkeypatch, session.generator)
    evaluated: list[int] = []
    real = mx.eval

    def counting(*arrays):
        evaluated.append(1)
        real(*arrays)

    asked = prompts(subject, 3)
    sampling = Sampling(max_tokens=40)
    requests = [Request(str(n), prepared=p, sampling=sampling) for n, p in enumerate(asked)]
    session.generator.insert(requests)
    while session.generator.stats()["decoding"] < len(asked):
        session.generator.next()
    session.generator.next()
    monkeypatch.setattr(mx, "eval", counting)
    before = dict(device.calls)
    for _ in range(20):
        session.generator.next()
    steps = {name: device.calls[name] - before[name] for name in before}
    assert steps == {**dict.fromkeys(steps, 0), "decode": 20, "read": 20}
    assert len(evaluated) == 20
