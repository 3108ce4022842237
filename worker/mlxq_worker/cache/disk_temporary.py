"""A block's file while it is being written."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mlxq_worker.cache.disk_trust import NotTrusted

if TYPE_CHECKING:
    from mlxq_worker.cache.disk_folder import CacheFolder

_WRITE: Final = 1 << 24
_NAME: Final = re.compile(r"[0-9a-f]{64}\.[0-9]+\.[0-9a-f]{16}")
_NEW: Final = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


class Occupied(Exception):
    """Something that is not ours has a block's place."""


@dataclass(slots=True)
class Temporary:
    """A file being written: it has its full size from the start, so that others count it."""

    path: Path
    fd: int

    @classmethod
    def make(cls, folder: CacheFolder, key: bytes, size: int) -> Temporary:
        """Open one; call it with the folder's lock held.

        File systems put files near others of the folder they are made in: made where it will
        stay, a file costs a quarter of the time that it costs where thousands were made before.
        """
        name = f"{key.hex()}.{os.getpid()}.{secrets.token_hex(8)}"
        path = folder.temporary / name
        with folder.opened(folder.fans[key[0]]) as fan:
            made = cls(path, os.open(name, _NEW, 0o600, dir_fd=fan))
            try:
                os.rename(name, path, src_dir_fd=fan)
            except BaseException:
                made._close()
                os.unlink(name, dir_fd=fan)
                raise
        try:
            if folder.trust.shared:
                os.fchmod(made.fd, folder.trust.file_mode)
            fcntl.flock(made.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(made.fd, size)
        except BaseException:
            made.drop()
            raise
        return made

    def fill(self, parts: Iterable[memoryview], used_ns: int) -> None:
        """Write all bytes to the disk itself; ``used_ns``: when the block was last of use."""
        for part in parts:
            start = 0
            while start < len(part):
                start += os.write(self.fd, part[start : start + _WRITE])
        os.utime(self.fd, ns=(used_ns, used_ns))
        os.fsync(self.fd)

    def commit(self, folder: CacheFolder, target: Path) -> None:
        """Let the file appear at its place, whole; raises :class:`Occupied`."""
        try:
            with folder.opened(target.parent) as fd:
                if place(target.name, fd) is not None:
                    raise Occupied(target)
                os.rename(self.path, target.name, dst_dir_fd=fd)
        except (NotADirectoryError, NotTrusted) as error:
            raise Occupied(target) from error
        self._close()

    def drop(self) -> None:
        """Give the file up, unless it is committed."""
        if self.fd >= 0:
            try:
                self.path.unlink(missing_ok=True)
            finally:
                self._close()

    def _close(self) -> None:
        fd, self.fd = self.fd, -1
        os.close(fd)


def is_temporary(name: str) -> bool:
    """True if a file is called as these are."""
    return _NAME.fullmatch(name) is not None


def place(name: str, folder_fd: int) -> os.stat_result | None:
    """What has a name in an open folder; None if it is free."""
    with suppress(FileNotFoundError):
        return os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
    return None
