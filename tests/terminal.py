"""A command in a terminal of a given size, and the screens that its user sees."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyte

READ = 65536


@dataclass
class Session:
    """What a command showed: the last screen, all screens between, and the raw bytes."""

    status: int
    screen: list[str]
    screens: list[list[str]]
    raw: bytes

    @property
    def text(self) -> str:
        """The last screen, without what is blank at its end."""
        return "\n".join(line.rstrip() for line in self.screen).rstrip() + "\n"


@dataclass
class Terminal:
    """A terminal of ``columns`` by ``rows``; ``colour`` False sets ``NO_COLOR``."""

    columns: int = 80
    rows: int = 24
    colour: bool = True
    keys: Callable[[list[str], subprocess.Popen[bytes]], None] = field(
        default=lambda _screen, _process: None
    )
    """Looks at each screen, and may act on the process."""

    def run(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> Session:
        """Run a command to its end, with stdin, stdout and stderr in the terminal."""
        ours, theirs = pty.openpty()
        size = struct.pack("HHHH", self.rows, self.columns, 0, 0)
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, size)
        settings = dict(os.environ if environment is None else environment)
        settings["TERM"] = "xterm-256color"
        for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CI"):
            settings.pop(name, None)
        if not self.colour:
            settings["NO_COLOR"] = "1"
        with subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=settings,
            cwd=cwd,
            start_new_session=True,
        ) as process:
            os.close(theirs)
            return self._watch(process, ours)

    def _watch(self, process: subprocess.Popen[bytes], ours: int) -> Session:
        screen = pyte.Screen(self.columns, self.rows)
        # A terminal's driver ends lines with both; what is read here has passed it.
        stream = pyte.ByteStream(screen)
        raw, screens = b"", list[list[str]]()
        while True:
            try:
                data = os.read(ours, READ)
            except OSError:  # Linux says so once the other side is closed
                data = b""
            if not data:
                break
            raw += data
            stream.feed(data)
            now = list(screen.display)
            if not screens or screens[-1] != now:
                screens.append(now)
            self.keys(now, process)
        os.close(ours)
        return Session(process.wait(), list(screen.display), screens, raw)


def steady(text: str) -> str:
    """A screen with what differs from run to run replaced."""
    text = re.sub(r"\b\d+:\d\d\b", "0:00", text)
    text = re.sub(r"[\d,]+\.\d+(?= (items|tokens)/s)", "0.0", text)
    return re.sub(r"[\d,]+(?= tokens/s)", "0", text)
