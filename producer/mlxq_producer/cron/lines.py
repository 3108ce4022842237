"""What to write where for the system's own clocks to do ticks."""

from __future__ import annotations

import plistlib
import re
import shlex
from collections.abc import Sequence
from itertools import product
from typing import Any, Final

from mlxq_producer.cron.schedule import Schedule
from mlxq_schemas.errors import ConfigError

MOST_TIMES: Final = 500


_NOT_IN_CRONTAB: Final = re.compile("[\0\r\n\ud800-\udfff]")
_NOT_IN_PLIST: Final = re.compile("[\0-\x08\x0b\x0c-\x1f\ud800-\udfff]")


def _check(command: Sequence[str], wrong: re.Pattern[str], where: str) -> None:
    for word in command:
        if wrong.search(word):
            raise ConfigError(
                f"{where} cannot hold the word {word!r}: put the command into a script, and "
                "schedule that"
            )


def crontab(schedule: Schedule, command: Sequence[str], *, at_boot: bool) -> str:
    """Lines for ``crontab -e``; ``at_boot`` makes up for what was missed while it was off."""
    _check(command, _NOT_IN_CRONTAB, "a line of a crontab")
    # In a crontab a % ends the command.
    line = shlex.join(command).replace("%", r"\%")
    lines = [f"{schedule.text} {line}"]
    if at_boot:
        lines.append(f"@reboot {line}")
    return "\n".join(lines)


def launchd(name: str, schedule: Schedule, command: Sequence[str], *, at_boot: bool) -> str:
    """A property list for ``~/Library/LaunchAgents/mlxq.cron.NAME.plist``."""
    _check(command, _NOT_IN_PLIST, "a property list")
    times = _times(schedule)
    if len(times) > MOST_TIMES:
        raise ConfigError(
            f"schedule {schedule.text!r} is {len(times)} times a year for launchd: "
            "choose a simpler one, with * where any value will do"
        )
    settings: dict[str, Any] = {
        "Label": f"mlxq.cron.{name}",
        "ProgramArguments": list(command),
        "StartCalendarInterval": times,
        "RunAtLoad": at_boot,
    }
    return plistlib.dumps(settings, sort_keys=False).decode().rstrip()


def _times(schedule: Schedule) -> list[dict[str, int]]:
    common: dict[str, Sequence[int]] = {}
    if len(schedule.minutes) < 60:
        common["Minute"] = schedule.minutes
    if len(schedule.hours) < 24:
        common["Hour"] = schedule.hours
    if schedule.months is not None:
        common["Month"] = schedule.months
    either = [
        {name: values}
        for name, values in (("Day", schedule.days), ("Weekday", schedule.weekdays))
        if values is not None
    ]
    return [
        dict(zip(fields, values, strict=True))
        for fields in ([common | days for days in either] or [common])
        for values in product(*fields.values())
    ]
