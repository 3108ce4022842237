"""Webdataset shards: tar files of pictures and their captions, which appear when they are full."""

from __future__ import annotations

import hashlib
import os
import re
import tarfile
from pathlib import Path
from typing import Final

from mlxq_producer.errors import OutputFailed
from mlxq_producer.pipeline.archives import split
from mlxq_producer.pipeline.item import Item, Row
from mlxq_producer.pipeline.ledger import Ledger
from mlxq_producer.pipeline.output import Existing
from mlxq_producer.pipeline.pictures import PICTURES, is_picture
from mlxq_schemas.errors import ConfigError, MediaNotFound

SHARD_ITEMS: Final = 10_000
SHARD_BYTES: Final = 1 << 30
"""A shard is complete once it holds so much, whichever comes first; the last may hold less."""

_PATTERN: Final = re.compile(r"([^%]*)%(?:0(\d+))?d([^%]*\.tar)", re.IGNORECASE)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_MAGIC: Final = (
    *((b"\x89PNG", "png"), (b"\xff\xd8", "jpg"), (b"GIF8", "gif"), (b"BM", "bmp")),
    *((b"II*\0", "tif"), (b"MM\0*", "tif"), (b"8BPS", "psd"), (b"\0\0\1\0", "ico")),
    *((b"\0\0\0\x0cjP  ", "jp2"), (b"\xff\x4f\xff\x51", "j2k"), (b"\x01\xda", "sgi")),
    *((b"\x59\xa6\x6a\x95", "ras"), *((b"P%d" % kind, "pnm") for kind in range(1, 7))),
)


class Shards:
    """Files named by a pattern such as ``data-%06d.tar``, of ``items`` samples or ``size`` bytes.

    A sample is KEY.jpg (or what the picture is, byte for byte), KEY.txt, the caption, and KEY.json,
    the row. KEY is where the item was, without suffix; a dot in it would end it, so it becomes
    ``_``, and the second item of a key has some of its name's digest after it.

    A shard has another name until it is complete, and then never changes, unless an item of it is
    captioned anew: the old sample is taken out when the run ends. The ledger knows in which shard
    each sample is. What an unfinished one held when its run was killed is put into the next.
    """

    def __init__(self, path: Path, items: int = SHARD_ITEMS, size: int = SHARD_BYTES) -> None:
        found = _PATTERN.fullmatch(path.name)
        if found is None:
            raise ConfigError(
                f"{path} names one archive, and there may be several: put one %06d into its name, "
                f"as in {path.name.split('%')[0].removesuffix('.tar')}-%06d.tar"
            )
        self._path = path
        self._name = str(path)
        self._before, self._digits, self._after = found[1], int(found[2] or 1), found[3]
        self._most_items, self._most_bytes = items, size
        self._ledger: Ledger | None = None
        self._file = -1
        self._number = self._count = self._size = 0

    def open(self, ledger: Ledger, existing: Existing) -> None:
        """Begin, or go on with the shard after the last complete one."""
        self._ledger = ledger
        self._path.parent.mkdir(parents=True, exist_ok=True)
        there = self._numbers()
        first = ledger.get(f"shards:{self._name}")
        if first is None:
            if there and existing == "skip":
                raise ConfigError(
                    f"{self._shard(min(there))} exists and no ledger knows it: give another name, "
                    "or --existing overwrite or append"
                )
            if existing == "overwrite":
                for number in there:
                    self._shard(number).unlink()
                there = set()
            ledger.set(f"shards:{self._name}", "known")
        for number in self._numbers(".", ".mlxq-tmp"):
            self._temporary(number).unlink()
        known = ledger.shards(self._name)
        for number in known & there:
            if not _is_whole(self._shard(number)):
                self._shard(number).unlink()
                there.remove(number)
        for number in known - there:
            ledger.forget_samples(self._name, number)
        self._number = max(there, default=-1) + 1

    def write(self, item: Item, row: Row) -> None:
        """Add an item's sample; a failed one has none, nor keeps an older."""
        ledger = self._known()
        if not row.ok:
            ledger.retire_sample(self._name, item.name)
            return
        try:
            content = self._content(item)
            key = self._key(item)
            data = b"".join(
                _member(f"{key}.{suffix}", part)
                for suffix, part in (
                    *(() if content is None else ((_suffix(item, content), content),)),
                    ("txt", row.text.encode()),
                    ("json", row.as_json().encode()),
                )
            )
        except (OSError, ValueError, MediaNotFound) as error:
            raise OutputFailed(f"cannot put {item.name} into an archive: {error}") from error
        if self._count and self._size + len(data) > self._most_bytes:
            self._complete()
        self._append(data, item.name, key)
        if self._count >= self._most_items or self._size >= self._most_bytes:
            self._complete()

    def restore(self, item: Item, row: Row) -> None:
        """Add a finished item's sample if no shard has it."""
        if row.ok and not self._known().has_sample(self._name, item.name):
            self.write(item, row)

    def sizes(self) -> dict[str, int]:
        """None: the ledger knows each sample."""
        return {}

    def finish(self, ledger: Ledger) -> None:
        """Complete the last shard, and take out samples that were replaced."""
        if self._count:
            self._complete()
        elif self._file >= 0:  # nothing was written but what did not fit on the disk
            os.close(self._file)
            self._file = -1
            self._temporary(self._number).unlink()
        for number in sorted(ledger.shards(self._name, retired=True)):
            self._take_out(number, ledger.retired_keys(self._name, number))
            ledger.forget_samples(self._name, number, retired=True)

    def _append(self, data: bytes, name: str, key: str) -> None:
        """Add a sample to shard and ledger, or to neither."""
        try:
            if self._file < 0:
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
                self._file = os.open(self._temporary(self._number), flags, 0o644)
            _write_all(self._file, data)
            self._known().put_sample(self._name, name, self._number, key)
        except BaseException as error:
            if self._file >= 0:
                os.ftruncate(self._file, self._size)
            if isinstance(error, OSError):
                raise self._failed(error) from error
            raise
        self._size += len(data)
        self._count += 1

    def _complete(self) -> None:
        """End the shard, see to it that it is on disk, and give it its name."""
        try:
            _write_all(self._file, bytes(2 * tarfile.BLOCKSIZE))
            os.fsync(self._file)
            self._temporary(self._number).replace(self._shard(self._number))
        except OSError as error:
            raise self._failed(error) from error
        finally:
            os.close(self._file)
            self._file = -1
            self._count = self._size = 0
        self._number += 1

    def _take_out(self, number: int, keys: set[str]) -> None:
        """Put a shard without these samples in its place; none at all if it has no others."""
        place, temporary, left = self._shard(number), self._temporary(number), False
        try:
            with tarfile.open(place, "r:") as old, tarfile.open(temporary, "w") as new:
                for member in old:
                    if split(member.name)[0] not in keys:
                        new.addfile(member, old.extractfile(member))
                        left = True
            if left:
                with temporary.open("rb") as file:
                    os.fsync(file.fileno())
                temporary.replace(place)
            else:
                place.unlink()
                temporary.unlink()
        except (OSError, tarfile.TarError) as error:
            temporary.unlink(missing_ok=True)
            raise ConfigError(f"cannot take replaced items out of {place}: {error}") from error

    def _content(self, item: Item) -> bytes | None:
        """The picture that was captioned, as it is; None for a row of text."""
        if isinstance(item.media, str):
            raise OutputFailed(
                f"{item.name} is fetched by the worker, so its bytes are not here to be put into "
                "an archive: download it, and name the file"
            )
        if not isinstance(item.media, Path):
            return item.media
        known = self._known().item(item.name)
        content = item.media.read_bytes()
        if known is not None and known.digest != hashlib.sha256(content).hexdigest():
            raise OutputFailed(f"{item.name} changed while it was captioned: run again")
        return content

    def _key(self, item: Item) -> str:
        parts = _CONTROL.sub("_", item.relative or item.name).split("/")
        *folders, base = [part for part in parts if part not in {"", ".", ".."}] or ["item"]
        base = base.rpartition(".")[0] if is_picture(base) else base
        key = "/".join((*folders, base.replace(".", "_")))
        if self._known().take(f"{self._name}!{key}", item.name) is None:
            return key
        # Of two items with one key the second: the same again in every run.
        return f"{key}-{hashlib.sha256(item.name.encode()).hexdigest()[:16]}"

    def _known(self) -> Ledger:
        assert self._ledger is not None  # noqa: S101 - for the type checker: it is open
        return self._ledger

    def _shard(self, number: int) -> Path:
        return self._path.with_name(f"{self._before}{number:0{self._digits}}{self._after}")

    def _temporary(self, number: int) -> Path:
        return self._path.with_name(f".{self._shard(number).name}.mlxq-tmp")

    def _numbers(self, head: str = "", tail: str = "") -> set[int]:
        """The shards that are complete, or those that have such a file around their name."""
        digits = f"([0-9]{{{self._digits},}})"
        first, last = re.escape(head + self._before), re.escape(self._after + tail)
        ours = re.compile(f"{first}{digits}{last}")
        names = (ours.fullmatch(path.name) for path in self._path.parent.iterdir())
        return {int(found[1]) for found in names if found is not None}

    def _failed(self, error: Exception) -> ConfigError:
        reason = getattr(error, "strerror", None) or error
        return ConfigError(f"cannot write {self._shard(self._number)}: {reason}")


def _is_whole(path: Path) -> bool:
    """True if an archive is there up to the zeros that end it."""
    end = 2 * tarfile.BLOCKSIZE
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(0, size - end))
        return size % tarfile.BLOCKSIZE == 0 and file.read() == bytes(end)


def _member(name: str, data: bytes) -> bytes:
    """A file in a tar archive: its header, its bytes, and zeros up to the next block."""
    info = tarfile.TarInfo(name)
    info.size = len(data)
    head = info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")
    return head + data + bytes(-len(data) % tarfile.BLOCKSIZE)


def _suffix(item: Item, content: bytes) -> str:
    """What the picture is: by the name it came with, else by its first bytes."""
    suffix = item.relative.rpartition(".")[2].lower()
    if f".{suffix}" in PICTURES:
        return suffix
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "webp"
    if content[4:12] in {b"ftypavif", b"ftypavis"}:
        return "avif"
    return next((kind for magic, kind in _MAGIC if content.startswith(magic)), "bin")


def _write_all(file: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]
