"""Whose files and folders are believed: what others may change decides what the model says."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

_OTHERS_MAY_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
REMEDY: Final = "use another --cache-dir, or --cache-shared if you trust all who may write there"


class NotTrusted(PermissionError):
    """Something that another user owns or may change; the message is for the user."""


class Trust:
    """This user's own files, that nobody else may write to; with ``shared``, anybody's."""

    def __init__(self, *, shared: bool = False) -> None:
        self.shared = shared
        self.folder_mode: Final = 0o2770 if shared else 0o700
        self.file_mode: Final = 0o660 if shared else 0o600

    def believes(self, found: os.stat_result) -> bool:
        """True if only those whom we trust can have written what was found (a link: never)."""
        if stat.S_ISLNK(found.st_mode):
            return False
        own = found.st_uid == os.geteuid()
        return self.shared or (own and not found.st_mode & _OTHERS_MAY_WRITE)

    def believes_file(self, found: os.stat_result) -> bool:
        """The same, of a regular file."""
        return stat.S_ISREG(found.st_mode) and self.believes(found)

    def check_folder(self, path: Path, found: os.stat_result) -> None:
        """Raises :class:`NotTrusted`, or :class:`NotADirectoryError` for anything else there."""
        if not stat.S_ISDIR(found.st_mode):
            raise NotADirectoryError(f"{path} is not a folder")
        if not self.believes(found):
            raise NotTrusted(f"{_trouble(path, found, 'chmod 700')}, {REMEDY}")

    def check_file(self, path: Path, found: os.stat_result) -> None:
        """Raises :class:`NotTrusted`, or :class:`OSError` for what is no regular file."""
        if not stat.S_ISREG(found.st_mode):
            kind = IsADirectoryError if stat.S_ISDIR(found.st_mode) else OSError
            raise kind(f"{path} is not a regular file")
        if not self.believes(found):
            raise NotTrusted(f"{_trouble(path, found, 'chmod 600')}, {REMEDY}")


def _trouble(path: Path, found: os.stat_result, chmod: str) -> str:
    whose = f"owner {found.st_uid}, mode {stat.S_IMODE(found.st_mode):04o}"
    if found.st_uid != os.geteuid():
        remedy = f"chown {os.geteuid()} {path}"
        return f"{path} is another user's ({whose}; this process is user {os.geteuid()}): {remedy}"
    return f"{path} may be changed by other users ({whose}): {chmod} {path}"


def open_parent(root: Path) -> Path | None:
    """The nearest folder above ``root`` in which anybody may put another folder in its place."""
    for parent in root.parents:
        try:
            mode = parent.stat().st_mode
        except OSError:
            continue
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            return parent
    return None
