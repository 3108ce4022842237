"""Cron expressions and their ticks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from typing import Final, Self

from mlxq_schemas.errors import ConfigError

_MONTHS: Final = (
    *("jan", "feb", "mar", "apr", "may", "jun"),
    *("jul", "aug", "sep", "oct", "nov", "dec"),
)
_DAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_RANGES: Final = {
    "minute": (0, 59),
    "hour": (0, 23),
    "day": (1, 31),
    "month": (1, 12),
    "weekday": (0, 7),
}
_LENGTHS: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_NAMED: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_PART: Final = re.compile(r"(\*|[0-9a-z]+)(?:-([0-9a-z]+))?(?:/(\d+))?\Z")


@dataclass(frozen=True)
class Schedule:
    """A cron expression of five fields, in local time; ``weekdays`` are 0 (Sunday) to 6.

    As in cron, where both day and weekday are restricted either of them is enough; they are
    None where the expression says ``*``.
    """

    text: str
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: tuple[int, ...] | None
    months: tuple[int, ...] | None
    weekdays: tuple[int, ...] | None

    @classmethod
    def parse(cls, text: str) -> Self:
        """The schedule of ``minute hour day month weekday`` or ``@daily`` ...

        Raises :class:`ConfigError`.
        """
        plain = " ".join(_NAMED.get(text.strip().lower(), text).lower().split())
        fields = plain.split()
        if len(fields) != len(_RANGES):
            raise ConfigError(
                f"schedule {text!r} is not 'minute hour day month weekday': write for example "
                "'0 3 * * *' for three o'clock each night, or @hourly, @daily, @weekly, @monthly"
            )
        values = {
            name: _values(name, field, text) for name, field in zip(_RANGES, fields, strict=True)
        }
        most = max(_LENGTHS[month - 1] for month in values["month"])
        if fields[4] == "*" and values["day"][0] > most:
            raise ConfigError(f"schedule {text!r}: no month of these has such a day")
        free = {name: field.startswith("*") for name, field in zip(_RANGES, fields, strict=True)}
        return cls(
            plain,
            values["minute"],
            values["hour"],
            None if free["day"] and "/" not in fields[2] else values["day"],
            None if fields[3] == "*" else values["month"],
            None
            if free["weekday"] and "/" not in fields[4]
            else tuple(sorted({day % 7 for day in values["weekday"]})),
        )

    def between(self, after: float, until: float) -> Iterator[float]:
        """The ticks, in unix seconds, with ``after`` < tick <= ``until``, the oldest first.

        In the hour that summer time leaves out a tick comes an hour later; in the hour that it
        repeats, once.
        """
        day = datetime.fromtimestamp(after).date()  # noqa: DTZ006 - cron speaks local time
        last = datetime.fromtimestamp(until).date()  # noqa: DTZ006
        previous = after
        while day <= last:
            for hour in self.hours if self._on(day.day, day.month, day.isoweekday() % 7) else ():
                for minute in self.minutes:
                    tick = datetime.combine(day, time(hour, minute)).timestamp()
                    if previous < tick <= until:
                        previous = tick
                        yield tick
            day += timedelta(days=1)

    def _on(self, day: int, month: int, weekday: int) -> bool:
        if self.months is not None and month not in self.months:
            return False
        if self.days is not None and self.weekdays is not None:
            return day in self.days or weekday in self.weekdays
        return (self.days is None or day in self.days) and (
            self.weekdays is None or weekday in self.weekdays
        )


def _values(name: str, field: str, text: str) -> tuple[int, ...]:
    low, high = _RANGES[name]
    found: set[int] = set()
    for part in field.split(","):
        match = _PART.match(part)
        first, last = (low, high) if match is None else _bounds(name, match[1], match[2], match[3])
        step = int(match[3]) if match is not None and match[3] else 1
        if match is None or not low <= first <= last <= high or step < 1:
            raise ConfigError(
                f"schedule {text!r}: {part!r} is no {name}: write numbers from {low} to {high}, as "
                "in 5, 1-5, */10 or 1,15"
            )
        found.update(range(first, last + 1, step))
    return tuple(sorted(found))


def _bounds(name: str, first: str, last: str | None, step: str | None) -> tuple[int, int]:
    """First and last value of one part; (1, 0), which nothing is between, for what is none."""
    low, high = _RANGES[name]
    if first == "*":
        return (low, min(high, 6) if name == "weekday" else high) if last is None else (1, 0)
    start = _number(name, first)
    if last is None:
        return start, (high if step else start)
    return start, _number(name, last)


def _number(name: str, word: str) -> int:
    if word.isdecimal():
        return int(word)
    if name == "month" and word in _MONTHS:
        return _MONTHS.index(word) + 1
    return _DAYS.index(word) if name == "weekday" and word in _DAYS else -1
