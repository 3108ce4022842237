"""Schedules, their ticks, and doing each tick once."""

from __future__ import annotations

import os
import plistlib
import re
import shlex
import subprocess
import sys
import time
from datetime import datetime
from itertools import islice
from pathlib import Path

import pytest
from croniter import croniter
from hypothesis import given
from hypothesis import strategies as st

from mlxq_producer.cron.lines import crontab, launchd
from mlxq_producer.cron.schedule import Schedule
from mlxq_producer.cron.ticks import MOST, CatchUp, Ticker, due, tick_name
from mlxq_schemas import Keys
from mlxq_schemas.errors import ConfigError
from worker_process import eventually


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def times(expression: str, after: str, until: str) -> list[str]:
    ticks = Schedule.parse(expression).between(at(after), at(until))
    return [tick_name(tick)[6:] for tick in ticks]


@pytest.fixture
def zone(monkeypatch):
    """Sets the time zone of this process."""

    def move(name: str) -> None:
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield move
    monkeypatch.undo()
    time.tzset()


FIELDS = (
    st.tuples(
        st.sampled_from(["*", "0", "*/7", "5,50", "10-20/5", "59"]),
        st.sampled_from(["*", "3", "*/6", "8-17", "0,23"]),
        st.sampled_from(["*", "1", "31", "*/10", "10-12"]),
        st.sampled_from(["*", "2", "jan,jul", "4-6", "*/5"]),
        st.sampled_from(["*", "0", "7", "mon-fri", "sun", "*/3"]),
    )
    .map(" ".join)
    .filter(lambda text: not text.endswith(" 31 2 *"))
)  # never comes
LOCAL = datetime.fromisoformat  # naive: cron speaks local time
STARTS = st.datetimes(LOCAL("2024-01-01"), LOCAL("2028-01-01"))


@given(FIELDS, STARTS)
def test_ticks_are_those_that_croniter_finds(expression, start):
    start = start.replace(microsecond=0)
    until = start.timestamp() + 40 * 86400
    theirs = croniter(expression, start)
    ours = Schedule.parse(expression).between(start.timestamp(), until)
    for tick in islice(ours, 100):
        assert theirs.get_next(datetime).timestamp() == tick
    if next(ours, None) is None:
        assert theirs.get_next(datetime).timestamp() > until


def test_summer_time_drops_no_tick_and_doubles_none(zone):
    zone("Europe/Berlin")
    assert times("30 2 * * *", "2026-03-28T12:00", "2026-03-30T12:00") == ["29T0330", "30T0230"]
    assert times("30 2 * * *", "2026-10-24T12:00", "2026-10-26T12:00") == ["25T0230", "26T0230"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "* * * *",
        "60 * * * *",
        "5-1 * * * *",
        "*/0 * * * *",
        "x * * * *",
        "* * 31 feb *",
        "@often",
    ],
)
def test_a_wrong_schedule_is_told(text):
    with pytest.raises(ConfigError, match="schedule"):
        Schedule.parse(text)


def test_what_is_due():
    hourly, now = Schedule.parse("@hourly"), at("2026-05-05T12:01")
    missed = at("2026-05-05T09:00")
    names = {
        policy: [tick_name(tick)[-4:] for tick in due(hourly, missed, now, policy, 300)]
        for policy in CatchUp
    }
    assert names == {"skip": ["1200"], "last": ["1200"], "all": ["1000", "1100", "1200"]}
    late = at("2026-05-05T12:30")
    assert due(hourly, missed, late, CatchUp.SKIP, 300) == []
    assert due(hourly, missed, late, CatchUp.LAST, 300) == [at("2026-05-05T12:00")]
    for policy in CatchUp:
        assert due(hourly, None, late, policy, 300) == []
        assert due(hourly, None, now, policy, 300) == [at("2026-05-05T12:00")]
        assert due(hourly, at("2026-05-05T12:00"), now, policy, 300) == []
    minutely = Schedule.parse("* * * * *")
    all_missed = due(minutely, at("2026-05-01T00:00"), now, CatchUp.ALL, 300)
    assert (len(all_missed), all_missed[-1]) == (MOST, now)


def test_a_tick_that_failed_stays_due(redis_client, queue):
    ticker, hourly = Ticker(redis_client, Keys(queue), "nightly"), Schedule.parse("@hourly")
    done: list[float] = []

    def do(status: int):
        return lambda tick: done.append(tick) or status

    now = at("2026-05-05T12:01")
    assert ticker.run(hourly, do(7), now=now) == 7
    assert ticker.run(hourly, do(0), now=now) == 0
    assert ticker.run(hourly, do(0), now=now) is None
    assert done == [at("2026-05-05T12:00")] * 2
    assert ticker.run(hourly, do(0), CatchUp.ALL, now=at("2026-05-05T14:30")) == 0
    assert done[2:] == [at("2026-05-05T13:00"), at("2026-05-05T14:00")]
    assert not redis_client.exists(Keys(queue).cron_lock("nightly"))


def test_a_lock_that_is_lost_is_left_to_its_new_owner(redis_client, queue):
    ticker, key = Ticker(redis_client, Keys(queue), "a"), Keys(queue).cron_lock("a")

    def lose(tick: float) -> int:
        redis_client.set(key, "other", px=60000)
        return 0

    assert ticker.run(Schedule.parse("@hourly"), lose, now=at("2026-05-05T12:01")) == 0
    assert redis_client.get(key) == b"other"
    assert ticker.run(Schedule.parse("@hourly"), lose, now=at("2026-05-05T13:01")) is None


@pytest.fixture
def environment(server, queue) -> dict[str, str]:
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return {**os.environ, "PYTHONPATH": path, "MLXQ_REDIS_URL": server.url, "MLXQ_QUEUE": queue}


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "mlxq_producer", "cron", *words]


WRITE = "import os, sys, time; time.sleep(1); print(sys.argv[1], os.environ['MLXQ_TICK'])"


def test_two_schedulers_do_a_tick_once(environment, redis_client, queue):
    call = command("tick", "x", "-s", "* * * * *", "--", sys.executable, "-c", WRITE, "a-{tick}")
    # Five minutes ago at the latest there was one that is on time; a minute may pass meanwhile.
    for _ in range(3):
        redis_client.delete(Keys(queue).cron("x"))
        before = time.time() // 60
        started = [
            subprocess.Popen(call, env=environment, stdout=subprocess.PIPE, text=True)
            for _ in range(3)
        ]
        said = [process.communicate(timeout=100)[0] for process in started]
        assert [process.returncode for process in started] == [0, 0, 0]
        if time.time() // 60 == before:
            break
    ran = [text.split() for text in said if text]
    assert len(ran) == 1
    assert ran[0][0] == f"a-{ran[0][1]}"


def test_the_exit_status_is_the_commands_and_the_tick_stays_due(environment, redis_client, queue):
    call = command(
        "tick", "x", "-s", "* * * * *", "--", sys.executable, "-c", "raise SystemExit(9)"
    )
    assert subprocess.run(call, env=environment, timeout=100, check=False).returncode == 9
    assert not redis_client.exists(Keys(queue).cron("x"))
    missing = command("tick", "x", "-s", "* * * * *", "--", "/no/such/program")
    done = subprocess.run(missing, env=environment, timeout=100, capture_output=True, check=False)
    assert done.returncode == 2
    assert b"cannot run /no/such/program" in done.stderr


def test_a_killed_scheduler_leaves_the_tick_to_another(environment, redis_client, queue, tmp_path):
    mark = tmp_path / "began"
    hang = f"import pathlib, time; pathlib.Path({str(mark)!r}).touch(); time.sleep(15)"
    call = command("tick", "x", "-s", "* * * * *", "--", sys.executable, "-c", hang)
    child = subprocess.Popen(call, env=environment)
    eventually(mark.exists)
    child.kill()
    child.wait()
    key = Keys(queue).cron_lock("x")
    assert 0 < redis_client.ttl(key) <= 60
    redis_client.delete(key)  # a minute later
    after = command("tick", "x", "-s", "* * * * *", "--", sys.executable, "-c", "print('done')")
    done = subprocess.run(after, env=environment, timeout=100, capture_output=True, check=False)
    assert done.stdout.split() == [b"done"]


def test_lines_for_cron_and_launchd(environment):
    words = ["nightly", "-s", "0 3 * * mon", "--", "mlxq", "submit", "-p", "50% of {tick}"]
    text = subprocess.run(
        command("lines", *words), env=environment, capture_output=True, check=True, text=True
    ).stdout
    [line, reboot] = text.splitlines()
    assert line.startswith("0 3 * * mon ")
    assert reboot.startswith("@reboot ")
    called = shlex.split(line.removeprefix("0 3 * * mon ").replace(r"\%", "%"))
    assert called[1:6] == ["-m", "mlxq_producer", "cron", "tick", "nightly"]
    assert called[-4:] == ["mlxq", *words[-3:]]
    assert "--redis-url" not in called  # a password of the environment stays out
    text = subprocess.run(
        command("lines", "--launchd", "--catch-up", "skip", *words),
        env=environment,
        capture_output=True,
        check=True,
    ).stdout
    agent = plistlib.loads(text)
    assert agent["Label"] == "mlxq.cron.nightly"
    assert agent["StartCalendarInterval"] == [{"Minute": 0, "Hour": 3, "Weekday": 1}]
    assert agent["RunAtLoad"] is False
    assert agent["ProgramArguments"][-1] == "50% of {tick}"


@pytest.mark.parametrize("word", ["two\nlines", "half \ud83d", "\udcff", "a\0b"])
def test_a_word_that_a_crontab_cannot_hold_is_refused(word):
    with pytest.raises(ConfigError, match="crontab cannot hold the word"):
        crontab(Schedule.parse("@daily"), ["x", word], at_boot=False)


@pytest.mark.parametrize("word", ["a\x01b", "a\rb", "half \ud83d", "\udcff", "a\0b"])
def test_a_word_that_a_property_list_cannot_hold_is_refused(word):
    with pytest.raises(ConfigError, match="property list cannot hold the word"):
        launchd("n", Schedule.parse("@daily"), ["x", word], at_boot=False)
    plain = launchd("n", Schedule.parse("@daily"), ["two\nlines"], at_boot=False)
    assert plistlib.loads(plain.encode())["ProgramArguments"] == ["two\nlines"]


def test_launchd_gets_every_time_and_refuses_too_many():
    agent = plistlib.loads(
        launchd("n", Schedule.parse("0,30 8 1 * sun"), ["x"], at_boot=True).encode()
    )
    assert agent["StartCalendarInterval"] == [
        {"Minute": 0, "Hour": 8, "Day": 1},
        {"Minute": 30, "Hour": 8, "Day": 1},
        {"Minute": 0, "Hour": 8, "Weekday": 0},
        {"Minute": 30, "Hour": 8, "Weekday": 0},
    ]
    every = launchd("n", Schedule.parse("* * * * *"), ["x"], at_boot=True)
    assert plistlib.loads(every.encode())["StartCalendarInterval"] == [{}]
    with pytest.raises(ConfigError, match="simpler"):
        launchd("n", Schedule.parse("*/2 1-23 1-20 * *"), ["x"], at_boot=True)
    assert "@reboot" not in crontab(Schedule.parse("@daily"), ["x"], at_boot=False)


PAGE = (Path(__file__).parents[2] / "docs" / "cron.md").read_text()
SHOWN = re.findall(r"^mlxq cron .*$", PAGE, re.MULTILINE)


def test_what_the_page_shows_works(environment, redis_client, queue):
    assert len(SHOWN) == 3
    tick, crontab_lines, agent = (shlex.split(line)[2:] for line in SHOWN)
    environment["PATH"] = "/usr/bin:/bin"  # as cron sets it; mlxq is beside the interpreter
    for words in (crontab_lines, agent):
        done = subprocess.run(command(*words), env=environment, capture_output=True, check=True)
        assert b"mlxq" in done.stdout
    now = ["* * * * *" if word == "0 3 * * *" else word for word in tick]
    subprocess.run(command(*now), env=environment, check=True, timeout=100)
    [job] = redis_client.keys(f"{Keys(queue).job('nightly-')}*")
    assert re.search(rb":job:nightly-\d{8}T\d{4}$", job)
