"""What to write where for the system's own clocks to do ticks."""

from __future__ import annotations

import plistlib
import shlex
from collections.abc import Sequence
from itertools import product
from typing import Any, Final

from mlxq_producer.cron.schedule import Schedule
from mlxq_schemas.errors import ConfigError

MOST_TIMES: Final = 500


def crontab(schedule: Schedule, command: Sequence[str], *, at_boot: bool) -> str:
    """Lines for ``crontab -e``; ``at_boot`` makes up for what was missed while it was off."""
    # In a crontab a % ends the command.
    line = shlex.join(command).replace("%", r"\%")
    lines = [f"{schedule.text} {line}"]
    if at_boot:
        lines.append(f"@reboot {line}")
    return "\n".join(lines)


def launchd(name: str, schedule: Schedule, command: Sequence[str], *, at_boot: bool) -> str:
    """A property list for ``~/Library/LaunchAgents/mlxq.cron.NAME.plist``."""
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
