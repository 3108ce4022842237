"""``python tests/shifted_clock.py SECONDS MODULE [ARGUMENT ...]``: a module whose clock is wrong.

The wall clock is shifted for the whole process, before anything of ours is imported; the
monotonic clock is not. For tests of what a wrong clock of one machine does to the others.
"""

from __future__ import annotations

import datetime
import runpy
import sys
import time
from collections.abc import Callable
from typing import Any, Self


def shift(seconds: float) -> None:
    """Move every wall clock of this process; to be called once, before other imports."""
    _shift_time(seconds)
    _shift_datetime(datetime.timedelta(seconds=seconds))


def _shift_time(seconds: float) -> None:
    real_time, real_ns = time.time, time.time_ns
    nanoseconds = round(seconds * 1e9)
    time.time = lambda: real_time() + seconds
    time.time_ns = lambda: real_ns() + nanoseconds
    gettime, gettime_ns = time.clock_gettime, time.clock_gettime_ns
    wall = time.CLOCK_REALTIME
    time.clock_gettime = lambda clock: gettime(clock) + (seconds if clock == wall else 0)
    time.clock_gettime_ns = lambda clock: gettime_ns(clock) + (nanoseconds if clock == wall else 0)
    for name in ("gmtime", "localtime", "ctime"):
        setattr(time, name, _with_default(getattr(time, name)))
    for name, place in (("strftime", 1), ("asctime", 0)):
        setattr(time, name, _with_default_tuple(getattr(time, name), place))


def _with_default(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda at=None: function(time.time() if at is None else at)


def _with_default_tuple(function: Callable[..., Any], place: int) -> Callable[..., Any]:
    """For functions that take the time as a tuple, after ``place`` other arguments."""

    def shifted(*arguments: Any) -> Any:
        rest = () if len(arguments) > place else (time.localtime(),)
        return function(*arguments, *rest)

    return shifted


def _shift_datetime(delta: datetime.timedelta) -> None:
    real_date, real_datetime = datetime.date, datetime.datetime

    class DateMeta(type):
        """Values that C code makes are of the real class."""

        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, real_date)

    class DatetimeMeta(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, real_datetime)

    class Date(real_date, metaclass=DateMeta):
        __slots__ = ()  # of the real one's size, which compiled modules check

        @classmethod
        def today(cls) -> Self:
            now = real_datetime.now() + delta
            return cls(now.year, now.month, now.day)

    class Datetime(real_datetime, metaclass=DatetimeMeta):
        __slots__ = ()

        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Self:
            return super().now(tz) + delta

        @classmethod
        def today(cls) -> Self:
            return cls.now()

        @classmethod
        def utcnow(cls) -> Self:
            return cls.now(datetime.UTC).replace(tzinfo=None)

    datetime.date, datetime.datetime = Date, Datetime  # type: ignore[misc]


if __name__ == "__main__":
    _, amount, module, *rest = sys.argv
    shift(float(amount))
    sys.argv = [module, *rest]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
