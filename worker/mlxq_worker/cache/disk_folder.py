"""The cache folder: where its files are, and how processes share it.

::

    ledger              what was written in the last day and how much is there; locked by who
                        adds or evicts
    blocks/ab/<64 hex>  one block each, named by its key
    tmp/                files being written, each locked by its writer as long as it lives
    quarantine/         the last damaged files, to be looked at

A block moves tmp -> blocks -> quarantine. Who adds up sizes looks in this order, so that a file
that moves meanwhile is counted twice rather than not at all. What others have put there is never
read, counted, moved or removed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from mlxq_schemas.errors import ConfigError
from mlxq_worker.cache.disk_ledger import Ledger, is_ledger
from mlxq_worker.cache.disk_lock import acquire, release
from mlxq_worker.cache.disk_temporary import Temporary, is_temporary
from mlxq_worker.cache.disk_trust import NotTrusted, Trust
from mlxq_worker.cache.host import KEY_BYTES

__all__ = ["FANS", "QUARANTINED", "CacheFolder", "Temporary", "key_of", "sync_folder"]

FANS: Final = 256
QUARANTINED: Final = 8
"""Most damaged files kept."""
LOCK_SECONDS: Final = 5.0
"""The longest wait for the lock: who holds it for longer is stopped or stuck."""
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
# A link in a file's place leads nowhere, a pipe there holds nobody up.
_FILE: Final = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class CacheFolder:
    """Paths and single steps; each raises :class:`OSError`. No state but paths.

    ``shared``: files of other users are as good as ours. ``lock_seconds``: the longest wait for
    the lock, then :class:`TimeoutError` (None: :data:`LOCK_SECONDS`).
    """

    def __init__(
        self, root: Path, *, shared: bool = False, lock_seconds: float | None = None
    ) -> None:
        self.root = root.absolute()
        self.ledger = self.root / "ledger"
        self.temporary = self.root / "tmp"
        self.quarantine = self.root / "quarantine"
        self.trust = Trust(shared=shared)
        self._lock_seconds = LOCK_SECONDS if lock_seconds is None else lock_seconds
        blocks = self.root / "blocks"
        self.fans: Final = tuple(blocks / f"{number:02x}" for number in range(FANS))

    @property
    def _folders(self) -> tuple[Path, ...]:
        return (self.temporary, self.quarantine, self.fans[0].parent, *self.fans)

    def prepare(self) -> None:
        """Make what is missing, for this user alone (and the group, if it is shared).

        Raises :class:`NotTrusted` for what is there and others may change.
        """
        if not self.root.exists():
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._open_to_group(self.root)
        self.trust.check_folder(self.root, self.root.stat())
        for folder in self._folders:
            with suppress(FileExistsError):
                folder.mkdir(mode=0o700)
                self._open_to_group(folder)
            self.trust.check_folder(folder, folder.lstat())

    def _open_to_group(self, folder: Path) -> None:
        if self.trust.shared:
            folder.chmod(self.trust.folder_mode)

    def check(self) -> None:
        """Raises :class:`ConfigError` unless this is a cache folder already, and to be trusted."""
        try:
            self.trust.check_folder(self.root, self.root.stat())
            fd = os.open(self.ledger, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                self.trust.check_file(self.ledger, os.fstat(fd))
                known = is_ledger(os.pread(fd, 64, 0))
            finally:
                os.close(fd)
            for folder in self._folders:
                with suppress(FileNotFoundError):
                    self.trust.check_folder(folder, folder.lstat())
        except NotTrusted as error:
            raise ConfigError(f"cache folder {self.root}: {error}") from error
        except OSError as error:
            raise ConfigError(f"no cache in {self.root}: {self._no_cache(error)}") from error
        if not known:
            raise ConfigError(f"no cache in {self.root}: {self.ledger} is something else")

    def _no_cache(self, error: OSError) -> str:
        """Why the ledger cannot be opened."""
        if not isinstance(error, FileNotFoundError):
            return error.strerror or str(error)
        if not self.root.exists():
            return "there is no such folder; check its name"
        return "this folder is something else, or no worker has used it yet; nothing was touched"

    def try_out(self) -> None:
        """Lock it and write to it. A disk that is full now may have room later: that is fine."""
        with self.lock():
            try:
                Temporary.make(self, bytes(KEY_BYTES), 1).drop()
            except OSError as error:
                if error.errno not in FULL:
                    raise

    def path(self, key: bytes) -> Path:
        """Where the block of a key is, if it is there."""
        return self.fans[key[0]] / key.hex()

    @contextmanager
    def opened(self, folder: Path) -> Generator[int]:
        """A descriptor of a subfolder: what is done in it is done there, not behind a link."""
        try:
            fd = os.open(folder, _FOLDER)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise NotADirectoryError(f"{folder} is a symbolic link") from error
            raise
        try:
            self.trust.check_folder(folder, os.fstat(fd))
            yield fd
        finally:
            os.close(fd)

    def changed(self, folder: Path) -> int:
        """When names in a subfolder changed last, in nanoseconds since 1970; 0 if it is not one
        that we trust."""
        try:
            found = os.lstat(folder)
            self.trust.check_folder(folder, found)
        except OSError:
            return 0
        return found.st_mtime_ns

    @contextmanager
    def lock(self) -> Generator[int]:
        """Keep all other processes and threads from adding or evicting; gives the open ledger.

        Raises :class:`TimeoutError` if somebody holds it for too long.
        """
        while True:
            fd = self._open_ledger()
            try:
                self.trust.check_file(self.ledger, os.fstat(fd))
                acquire(fd, self.ledger, self._lock_seconds)
                if _is_still(fd, self.ledger):
                    yield fd
                    return
            finally:
                release(fd)

    def _open_ledger(self) -> int:
        with suppress(FileNotFoundError):
            return os.open(self.ledger, _FILE)
        self.prepare()  # somebody removed the folder
        with suppress(FileExistsError):
            fd = os.open(self.ledger, _FILE | os.O_CREAT | os.O_EXCL, 0o600)
            if self.trust.shared:
                os.fchmod(fd, self.trust.file_mode)
            return fd
        return os.open(self.ledger, _FILE)

    def read_ledger(self) -> Ledger:
        """The ledger as it is now, without waiting for the lock."""
        fd = os.open(self.ledger, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            return Ledger.read(fd)
        finally:
            os.close(fd)

    def sizes(self, folder: Path) -> dict[Path, int]:
        """Bytes of each of our files in ``tmp`` or ``quarantine``."""
        ours = is_temporary if folder == self.temporary else key_of
        found: dict[Path, int] = {}
        with suppress(FileNotFoundError), os.scandir(folder) as entries:
            for entry in entries:
                if not ours(entry.name):
                    continue
                with suppress(FileNotFoundError):
                    file = entry.stat(follow_symlinks=False)
                    if self.trust.believes_file(file):
                        found[Path(entry.path)] = file.st_size
        return found

    def remove_stale(self) -> tuple[int, int]:
        """Remove what dead processes were writing; files and bytes. Call it with the lock held."""
        stale = {path: size for path, size in self.sizes(self.temporary).items() if _dead(path)}
        return len(stale), self.remove(stale)

    def put_away(self, path: Path, kind: str) -> bool:
        """Move a damaged file to the quarantine; False if it is gone already."""
        with suppress(FileNotFoundError):
            return self._put_away(path, kind)
        self.prepare()  # the file may be gone, or the quarantine
        with suppress(FileNotFoundError):
            return self._put_away(path, kind)
        return False

    def _put_away(self, path: Path, kind: str) -> bool:
        name = f"{path.name}.{kind}.{secrets.token_hex(4)}"
        with self.opened(path.parent) as source, self.opened(self.quarantine) as target:
            os.rename(path.name, name, src_dir_fd=source, dst_dir_fd=target)
        found = self.sizes(self.quarantine)
        self.remove({path: found[path] for path in sorted(found, key=_moved)[:-QUARANTINED]})
        return True

    def remove_empty(self, path: Path) -> None:
        """Remove a file that somebody died over before it got its size. The lock must be held."""
        with suppress(FileNotFoundError):
            found = path.lstat()
            if is_temporary(path.name) and not found.st_size and self.trust.believes_file(found):
                path.unlink()

    @staticmethod
    def remove(files: dict[Path, int]) -> int:
        """Remove files of these sizes; the bytes of those that nobody else has removed."""
        freed = 0
        for path, size in files.items():
            with suppress(FileNotFoundError):
                path.unlink()
                freed += size
        return freed

    def used(self, key: bytes, when: int) -> None:
        """Store when a block was last of use (nanoseconds since 1970)."""
        path = self.path(key)
        with suppress(FileNotFoundError), self.opened(path.parent) as fd:
            if not self.trust.believes_file(os.stat(path.name, dir_fd=fd, follow_symlinks=False)):
                return
            try:
                os.utime(path.name, ns=(when, when), dir_fd=fd, follow_symlinks=False)
            except PermissionError:  # of a file that is another user's, one may only say "now"
                with suppress(PermissionError):
                    os.utime(path.name, dir_fd=fd, follow_symlinks=False)


def sync_folder(path: Path) -> None:
    """Write the names in a folder to the disk itself."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
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
        return os.path.samestat(os.fstat(fd), path.lstat())
    except FileNotFoundError:
        return False


def _moved(path: Path) -> int:
    with suppress(FileNotFoundError):
        return path.lstat().st_ctime_ns
    return 0


def _dead(path: Path) -> bool:
    """True if nobody who lives is writing this file: a writer's lock ends with the writer."""
    try:
        fd = os.open(path, _FILE)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True
