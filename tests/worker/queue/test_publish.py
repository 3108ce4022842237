"""Publishing: in order, once, fenced, and never half."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import redis

from lua_worker import LuaWorker
from mlxq_schemas import Failed, Finished, Job, Result, Started, Token
from mlxq_schemas.errors import QueueError
from mlxq_worker.queue import publish as module
from mlxq_worker.queue.claim import Claim, Claimer, Retention
from mlxq_worker.queue.entry import Entry
from mlxq_worker.queue.link import LINK_ERRORS, Link
from mlxq_worker.queue.outbox import Ending
from mlxq_worker.queue.publish import Publisher
from tcp_proxy import TcpProxy


class Press:
    """A publisher and what it told."""

    def __init__(self, link: Link, other: LuaWorker) -> None:
        self.other = other
        self.link = link
        self.settled: list[str] = []
        self.lost: dict[str, str] = {}
        self.publisher = Publisher(
            link,
            other.keys,
            other.name,
            keep=Retention(60, 600),
            on_settled=lambda request_id, _: self.settled.append(request_id),
            on_lost=self.lost.__setitem__,
        )

    def claim(self, name: str = "a") -> Claim:
        self.other.submit(Job(id=name, prompt="p"))
        [(entry, _)] = self.other.read()
        found = Claimer(self.other.keys, "other", Retention(60, 600)).claim(
            Link(self.other.client), [Entry(self.other.keys.jobs(), entry.decode(), name)]
        )
        assert isinstance(found[0], Claim)
        return found[0]

    def text(self, claim: Claim, text: str) -> None:
        self.publisher.add_text(claim, text, [ord(c) for c in text])

    def end(self, claim: Claim, text: str) -> None:
        event = Finished(job=claim.job_id, reason="stop", text=text)
        result = Result(job=claim.job_id, type="finished", text=text)
        self.publisher.end(claim, Ending(event, result))

    def check(self, text: str, name: str = "a") -> None:
        """The job ended once, and its tokens are its text."""
        events = self.other.events(name)
        assert [event.seq for event in events] == list(range(len(events)))
        tokens = [event for event in events if isinstance(event, Token)]
        assert "".join(token.text for token in tokens) == text
        assert [i for token in tokens for i in token.ids] == [ord(c) for c in text]
        assert [e.type for e in events if e.type == "finished"] == ["finished"]
        assert self.other.result(name).text == text
        assert self.other.depth() == 0
        assert [request_id.split(":")[0] for request_id in self.settled] == [name]
        assert self.lost == {}


@pytest.fixture
def press(link: Link, other: LuaWorker) -> Press:
    return Press(link, other)


@pytest.fixture
def shaky_press(shaky: Link, other: LuaWorker) -> Press:
    return Press(shaky, other)


def test_text_that_waits_is_joined(press: Press) -> None:
    claim = press.claim()
    press.publisher.add(claim, Started(job="a"))
    for piece in ("ab", "c"):
        press.text(claim, piece)
    assert press.publisher.step() == 0.0
    press.text(claim, "d")
    press.publisher.step()
    press.text(claim, "e")
    press.end(claim, "abcde")
    press.publisher.step()
    press.check("abcde")
    texts = [event.text for event in press.other.events("a") if isinstance(event, Token)]
    assert texts == ["abc", "d", "e"]
    assert press.publisher.step() == module.IDLE_PAUSE
    assert press.publisher.drain(0)


def test_many_jobs_go_out_in_one_write(press: Press) -> None:
    claims = [press.claim(f"j{i}") for i in range(5)]
    for claim in claims:
        press.text(claim, claim.job_id)
        press.end(claim, claim.job_id)
    press.publisher.step()
    assert press.settled == [claim.request_id for claim in claims]
    assert [press.other.result(c.job_id).text for c in claims] == [c.job_id for c in claims]


@pytest.mark.parametrize("name", ["append", "finish"])
def test_a_lost_reply_doubles_nothing(shaky_press: Press, proxy: TcpProxy, name: str) -> None:
    press = shaky_press
    claim = press.claim()
    press.text(claim, "ab")
    press.publisher.step()
    press.text(claim, "cd")
    if name == "finish":
        press.end(claim, "abcd")
    proxy.swallow("EVALSHA")
    with pytest.raises(LINK_ERRORS):
        press.publisher.step()
    if name == "append":
        press.text(claim, "ef")
        press.end(claim, "abcdef")
    press.publisher.step()
    press.check("abcdef" if name == "append" else "abcd")
    assert proxy.swallowed == 1


def test_a_lost_reply_to_the_only_write_is_recognised(shaky_press: Press, proxy: TcpProxy) -> None:
    claim = shaky_press.claim()
    shaky_press.publisher.step()
    shaky_press.end(claim, "")
    proxy.swallow("EVALSHA")
    with pytest.raises(LINK_ERRORS):
        shaky_press.publisher.step()
    shaky_press.publisher.step()
    shaky_press.check("")


def test_a_write_that_never_arrived_is_sent_again(shaky_press: Press, proxy: TcpProxy) -> None:
    press = shaky_press
    claim = press.claim()
    press.text(claim, "ab")
    press.publisher.step()
    press.text(claim, "cd")
    proxy.cut()
    with pytest.raises(LINK_ERRORS):
        press.publisher.step()
    press.text(claim, "ef")
    press.end(claim, "abcdef")
    press.publisher.step()
    press.check("abcdef")


def test_a_lost_lease_publishes_nothing(press: Press) -> None:
    claim = press.claim()
    press.text(claim, "mine")
    press.publisher.step()
    press.other.claim("a", claim.entry.id.encode(), how="over")
    press.text(claim, "stale")
    press.end(claim, "minestale")
    press.publisher.step()
    assert set(press.lost) == {claim.request_id}
    assert [e.type for e in press.other.events("a")] == ["queued", "token"]
    assert press.publisher.step() == module.IDLE_PAUSE


def test_events_that_the_server_lost_are_not_skipped(
    press: Press, redis_client: redis.Redis
) -> None:
    """The server came back without its last writes: another claim must start from there."""
    claim = press.claim()
    press.text(claim, "ab")
    press.publisher.step()
    press.text(claim, "cd")
    press.publisher.step()
    redis_client.hincrby(press.other.keys.job("a"), "seq", -1)
    press.link.close()
    press.text(claim, "ef")
    press.publisher.step()
    assert set(press.lost) == {claim.request_id}
    assert press.other.state("a")["uncounted"] == "1"


@contextmanager
def full_server(client: redis.Redis) -> Iterator[None]:
    client.config_set("maxmemory", 1)
    try:
        yield
    finally:
        client.config_set("maxmemory", 0)


def test_a_full_server_keeps_everything_waiting(press: Press, redis_client: redis.Redis) -> None:
    claim = press.claim()
    press.text(claim, "ab")
    press.publisher.step()
    press.text(claim, "cd")
    with full_server(redis_client):
        with pytest.raises(QueueError):
            press.publisher.step()
        press.end(claim, "abcd")
        with pytest.raises(QueueError):
            press.publisher.step()
        assert not press.publisher.drain(0)
        assert press.other.depth() == 1  # not acknowledged without its result
    press.publisher.step()
    press.check("abcd")


def test_a_job_whose_keys_are_broken_does_not_stop_others(
    press: Press, redis_client: redis.Redis
) -> None:
    broken, good = press.claim("a"), press.claim("b")
    redis_client.set(press.other.keys.events("a"), "a string")
    for claim in (broken, good):
        press.text(claim, "x")
        press.end(claim, "x")
    press.publisher.step()
    assert press.lost == {}
    assert press.settled == [broken.request_id, good.request_id]
    assert [event.type for event in press.other.events("a")] == ["token", "finished"]


def test_an_event_that_cannot_be_encoded_fails_its_job_alone(press: Press) -> None:
    bad, good = press.claim("a"), press.claim("b")
    press.publisher.add(bad, Token.model_construct(job="a", text="\ud800", ids=[1]))
    for claim in (bad, good):
        press.end(claim, "")
    press.publisher.step()
    assert press.settled == [bad.request_id, good.request_id]
    result = press.other.result("a")
    assert (result.type, result.code) == ("failed", "internal")


def test_failures_go_to_the_dead_letters(press: Press, redis_client: redis.Redis) -> None:
    claim = press.claim()
    event = Failed(job="a", code="media_invalid", message="broken")
    result = Result(job="a", type="failed", code="media_invalid", message="broken")
    press.publisher.end(claim, Ending(event, result))
    press.publisher.step()
    [(_, row)] = redis_client.xrange(press.other.keys.dead)
    assert (row[b"id"], row[b"code"], row[b"message"]) == (b"a", b"media_invalid", b"broken")
    assert redis_client.ttl(press.other.keys.job("a")) > 60


def test_it_says_when_too_much_waits(press: Press, monkeypatch: pytest.MonkeyPatch) -> None:
    claim = press.claim()
    assert not press.publisher.full()
    monkeypatch.setattr(module, "MAX_CHARS", 10)
    press.text(claim, "x" * 11)
    assert press.publisher.full()
    press.publisher.step()
    assert not press.publisher.full()


def test_a_queue_key_of_another_type_keeps_everything_waiting(
    press: Press, redis_client: redis.Redis
) -> None:
    """Nobody died, and an operator can mend it: no job may pay for it."""
    claim = press.claim()
    press.end(claim, "")
    redis_client.set(press.other.keys.results, "a string", ex=60)
    with pytest.raises(QueueError, match="WRONGTYPE"):
        press.publisher.step()
    redis_client.delete(press.other.keys.results)
    press.publisher.step()
    assert (press.settled, press.lost) == ([claim.request_id], {})


@pytest.mark.parametrize("reconnects", [False, True])
def test_a_job_that_was_overwritten_is_lost_and_stops_no_other(
    press: Press, redis_client: redis.Redis, reconnects: bool
) -> None:
    broken, good = press.claim("a"), press.claim("b")
    press.text(broken, "x")
    press.publisher.step()
    redis_client.set(press.other.keys.job("a"), "a string", ex=60)
    redis_client.expire(press.other.keys.events("a"), 60)
    if reconnects:
        press.link.close()
    for claim in (broken, good):
        press.end(claim, "x")
    press.publisher.step()
    assert (set(press.lost), press.settled) == ({broken.request_id}, [good.request_id])


@pytest.mark.parametrize("again", ["submitted", "claimed", "flushed"])
def test_a_later_life_of_the_id_hears_nothing_of_this_one(
    press: Press, redis_client: redis.Redis, again: str
) -> None:
    claim = press.claim()
    press.text(claim, "ab")
    press.publisher.step()
    redis_client.delete(*redis_client.keys(f"{press.other.keys.prefix}:*"))
    if again != "flushed":
        press.other.submit(Job(id="a", prompt="another"))
    if again == "claimed":
        [(entry, _)] = press.other.read()
        assert press.other.claim("a", entry)[0] == b"ok"
    before = press.other.state("a"), press.other.events("a")
    press.link.close()  # it was frozen long enough
    press.text(claim, "cd")
    press.end(claim, "abcd")
    press.publisher.step()
    assert set(press.lost) == {claim.request_id}
    assert (press.other.state("a"), press.other.events("a")) == before
    assert not redis_client.exists(press.other.keys.result("a"))
