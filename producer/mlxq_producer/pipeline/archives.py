"""Webdataset archives: tar files in which members of one stem belong together."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from mlxq_producer.media import MAX_INLINE_BYTES
from mlxq_producer.pipeline.item import Item
from mlxq_producer.pipeline.pictures import NOISE, PICTURES, PassedOver, is_hidden, suffix_of
from mlxq_schemas.errors import BadMessage, ConfigError, MediaNotFound, MediaTooLarge, MlxqError

TEXTS: Final = frozenset({"txt", "caption", "cls", "text"})
"""Members that are a field each."""


def read_tar(path: Path, over: PassedOver) -> Iterator[Item]:
    """The samples of an archive, in their order, one of them in memory.

    A sample's picture is what is captioned; its ``.json`` gives fields, its other small text
    members one field each. A sample of text alone is an item that failed; members of other kinds
    without a picture, and second pictures, are counted in ``over``. Raises :class:`ConfigError`
    if the archive cannot be read.
    """
    try:
        with _opened(path) as file, tarfile.open(fileobj=file, mode="r|") as archive:
            key, parts = None, dict[str, bytes | MlxqError]()
            for member in archive:
                if member.isdir() or _is_noise(member.name):
                    continue
                if not member.isfile():
                    over.add("links and devices")
                    continue
                stem, _, suffix = split(member.name)
                if stem != key and parts:
                    yield from _sample(path, str(key), parts, over)
                    parts = {}
                key = stem
                parts[suffix] = _content(archive, member)
            if parts:
                yield from _sample(path, str(key), parts, over)
            # The library would tell neither that a header is cut off, nor that a checksum is wrong.
            while file.read(1 << 20):
                pass
            if 0 < file.tell() - archive.offset < tarfile.BLOCKSIZE:
                raise tarfile.ReadError("it is cut off in a header")
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise ConfigError(f"{path} is no tar file that can be read to its end: {error}") from error


def is_archive(path: Path) -> bool:
    """Whether a name is that of an archive."""
    return path.name.lower().endswith((".tar", ".tar.gz", ".tgz"))


def _opened(path: Path) -> io.BufferedReader | gzip.GzipFile:
    """The bytes of the archive, unpacked if they are gzip's, whatever it is called."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return gzip.open(path) if packed else path.open("rb")


def split(name: str) -> tuple[str, str, str]:
    """Webdataset's rule: a sample's key ends at the first dot of the file's name."""
    folder, slash, base = name.rpartition("/")
    stem, dot, suffix = base.partition(".")
    return f"{folder}{slash}{stem}", dot, suffix.lower()


def _is_noise(name: str) -> bool:
    """Whether a member is one of those that a Mac or a file browser adds."""
    *folders, base = name.split("/")
    return is_hidden(base) or any(folder.lower() in NOISE for folder in folders)


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes | MlxqError:
    """A member's bytes; none of one that is neither picture nor field."""
    suffix = suffix_of(member.name)
    if suffix not in PICTURES and suffix[1:] not in {"json", *TEXTS}:
        return b""
    if member.size > MAX_INLINE_BYTES:
        return MediaTooLarge(f"{member.name} has {member.size:,} bytes: scale it down")
    file = archive.extractfile(member)
    return b"" if file is None else file.read()


def _sample(
    path: Path, key: str, parts: dict[str, bytes | MlxqError], over: PassedOver
) -> Iterator[Item]:
    """The item of a sample, if there is one in it."""
    name = f"{path}!{key}"
    relative = "/".join(part for part in key.split("/") if part not in {"", ".", ".."})
    pictures = sorted((s for s in parts if suffix_of(f"x.{s}") in PICTURES), key=_dots)
    if not pictures:
        texts = {"json", *TEXTS} & parts.keys()
        for suffix in parts.keys() - texts:
            over.add(suffix_of(f"x.{suffix}") if suffix else "")
        if texts:
            error = MediaNotFound(f"{name}: no picture among {', '.join(sorted(parts))}")
            yield Item(name, relative=relative, error=error)
        return
    suffix, *others = pictures
    for other in others:
        over.add(f".{other}")
    picture = parts.pop(suffix)
    if isinstance(picture, MlxqError):
        yield Item(name, relative=relative, error=picture)
        return
    try:
        fields = _fields(parts)
    except (ValueError, RecursionError) as error:
        broken = BadMessage(f"{name}: its .json is broken: {error}")
        yield Item(name, relative=relative, error=broken)
        return
    yield Item(name, picture, {"key": key, **fields}, relative=f"{relative}.{suffix}")


def _dots(suffix: str) -> int:
    return suffix.count(".")


def _fields(parts: dict[str, bytes | MlxqError]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for suffix, data in parts.items():
        if not isinstance(data, bytes):
            continue
        if suffix == "json":
            value = json.loads(data)
            fields |= value if isinstance(value, dict) else {"json": value}
        elif suffix in TEXTS:
            fields[suffix] = data.decode("utf-8", "replace").strip()
    return fields
