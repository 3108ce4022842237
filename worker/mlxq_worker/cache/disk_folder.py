"""The cache folder: where its files are, and how processes share it.

::

    ledger              what was written in the last day; locked by who changes the folder
    blocks/ab/<64 hex>  one block each, named by its key
    tmp/                files being written, each locked by its writer as long as it lives
    quarantine/         the last damaged files, to be looked at

A block moves tmp -> blocks -> quarantine. Who adds up sizes looks in this order, so that a file
that moves meanwhile is counted twice rather than not at all.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mlxq_schemas.errors import ConfigError
from mlxq_worker.cache.disk_ledger import is_ledger
from mlxq_worker.cache.host import KEY_BYTES

FANS: Final = 256
QUARANTINED: Final = 8
"""Most damaged files kept."""
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_WRITE: Final = 1 << 24
_OPEN: Final = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


class CacheFolder:
    """Paths and single steps; each raises :class:`OSError`. No state but paths."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.ledger = self.root / "ledger"
        self.temporary = self.root / "tmp"
        self.quarantine = self.root / "quarantine"
        blocks = self.root / "blocks"
        self.fans: Final = tuple(blocks / f"{number:02x}" for number in range(FANS))

    def prepare(self) -> None:
        """Make what is missing, for this user alone."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in (self.temporary, self.quarantine, self.fans[0].parent, *self.fans):
            folder.mkdir(mode=0o700, exist_ok=True)

    def try_out(self) -> None:
        """Lock it and write to it. A disk that is full now may have room later: that is fine."""
        with self.lock():
            try:
                Temporary.make(self, bytes(KEY_BYTES), 1).drop()
            except OSError as error:
                if error.errno not in FULL:
                    raise

    def check_is_cache(self) -> None:
        """Raises :class:`ConfigError` unless this is a cache folder already."""
        try:
            with self.ledger.open("rb") as file:
                known = is_ledger(file.read(64))
        except OSError as error:
            raise ConfigError(f"no cache in {self.root}: {error.strerror}") from error
        if not known:
            raise ConfigError(f"no cache in {self.root}: {self.ledger} is something else")

    def path(self, key: bytes) -> Path:
        """Where the block of a key is, if it is there."""
        return self.fans[key[0]] / key.hex()

    @contextmanager
    def lock(self) -> Generator[int]:
        """Keep all other processes and threads from adding or evicting; gives the open ledger."""
        while True:
            fd = self._open_ledger()
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
                if _is_still(fd, self.ledger):
                    yield fd
                    return
            finally:
                fcntl.flock(fd, fcntl.LOCK_UN)  # a forked child may hold the descriptor too
                os.close(fd)

    def _open_ledger(self) -> int:
        try:
            return os.open(self.ledger, _OPEN, 0o600)
        except FileNotFoundError:  # somebody removed the folder
            self.prepare()
            return os.open(self.ledger, _OPEN, 0o600)

    def sizes(self, folder: Path) -> dict[Path, int]:
        """Bytes of each file in ``tmp`` or ``quarantine``."""
        found: dict[Path, int] = {}
        with suppress(FileNotFoundError), os.scandir(folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    found[Path(entry.path)] = entry.stat(follow_symlinks=False).st_size
        return found

    def remove_stale(self) -> tuple[int, int]:
        """Remove what dead processes were writing; files and bytes. Call it with the lock held."""
        stale = [(path, size) for path, size in self.sizes(self.temporary).items() if _dead(path)]
        self.release(path for path, _ in stale)
        return len(stale), sum(size for _, size in stale)

    def put_away(self, path: Path, kind: str) -> bool:
        """Move a damaged file to the quarantine; False if it is gone already."""
        target = self.quarantine / f"{path.name}.{kind}.{secrets.token_hex(4)}"
        try:
            path.rename(target)
        except FileNotFoundError:
            return False
        self.release(self._oldest_quarantined()[:-QUARANTINED])
        return True

    @staticmethod
    def release(paths: Iterable[Path]) -> None:
        """Remove files."""
        for path in paths:
            path.unlink(missing_ok=True)

    def _oldest_quarantined(self) -> list[Path]:
        def moved(path: Path) -> int:
            with suppress(FileNotFoundError):
                return path.lstat().st_ctime_ns
            return 0

        return sorted(self.sizes(self.quarantine), key=moved)


@dataclass(slots=True)
class Temporary:
    """A file being written: it has its full size from the start, so that others count it."""

    path: Path
    fd: int

    @classmethod
    def make(cls, folder: CacheFolder, key: bytes, size: int) -> Temporary:
        """Open one; call it with the folder's lock held."""
        name = f"{key.hex()}.{os.getpid()}.{secrets.token_hex(8)}"
        path = folder.temporary / name
        made = cls(path, os.open(path, _OPEN | os.O_EXCL, 0o600))
        try:
            fcntl.flock(made.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(made.fd, size)
        except OSError:
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

    def commit(self, target: Path) -> None:
        """Let the file appear at its place, whole."""
        self.path.rename(target)
        self._close()

    def drop(self) -> None:
        """Give the file up, unless it is committed."""
        if self.fd >= 0:
            self.path.unlink(missing_ok=True)
            self._close()

    def _close(self) -> None:
        fd, self.fd = self.fd, -1
        os.close(fd)


def sync_folder(path: Path) -> None:
    """Write the names in a folder to the disk itself."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def key_of(name: str) -> bytes | None:
    """The key that a file's name says (up to its first dot); None for a stranger."""
    digits = name.split(".", 1)[0]
    if len(digits) != 2 * KEY_BYTES or digits != digits.lower():
        return None
    try:
        return bytes.fromhex(digits)
    except ValueError:
        return None


def _is_still(fd: int, path: Path) -> bool:
    """False if somebody has removed the folder since: a lock there keeps nobody out."""
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def _dead(path: Path) -> bool:
    """True if nobody who lives is writing this file: a writer's lock ends with the writer."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True
