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
from mlxq_schemas.errors import BadMessage, ConfigError, MediaNotFound, MediaTooLarge, MlxqError

PICTURES: Final = frozenset({"jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "avif"})


def read_tar(path: Path) -> Iterator[Item]:
    """The samples of an archive, in their order, one of them in memory.

    A sample's picture is what is captioned; its ``.json`` gives fields, its other small text
    members one field each. Raises :class:`ConfigError` if the archive cannot be read.
    """
    try:
        with _opened(path) as file, tarfile.open(fileobj=file, mode="r|") as archive:
            key, parts = None, dict[str, bytes | MlxqError]()
            for member in archive:
                if not member.isfile():
                    continue
                stem, _, suffix = split(member.name)
                if stem != key and parts:
                    yield _sample(path, str(key), parts)
                    parts = {}
                key = stem
                parts[suffix] = _content(archive, member)
            if parts:
                yield _sample(path, str(key), parts)
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


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes | MlxqError:
    if member.size > MAX_INLINE_BYTES:
        return MediaTooLarge(f"{member.name} has {member.size:,} bytes: scale it down")
    file = archive.extractfile(member)
    return b"" if file is None else file.read()


def _sample(path: Path, key: str, parts: dict[str, bytes | MlxqError]) -> Item:
    name = f"{path}!{key}"
    relative = "/".join(part for part in key.split("/") if part not in {"", ".", ".."})
    suffix = next((s for s in parts if s.rsplit(".", 1)[-1] in PICTURES), None)
    if suffix is None:
        error = MediaNotFound(f"{name}: no picture among {', '.join(sorted(parts))}")
        return Item(name, relative=relative, error=error)
    picture = parts.pop(suffix)
    if isinstance(picture, MlxqError):
        return Item(name, relative=relative, error=picture)
    try:
        fields = _fields(parts)
    except ValueError as error:
        broken = BadMessage(f"{name}: its .json is broken: {error}")
        return Item(name, relative=relative, error=broken)
    return Item(name, picture, {"key": key, **fields}, relative=f"{relative}.{suffix}")


def _fields(parts: dict[str, bytes | MlxqError]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for suffix, data in parts.items():
        if not isinstance(data, bytes):
            continue
        if suffix == "json":
            value = json.loads(data)
            fields |= value if isinstance(value, dict) else {"json": value}
        elif suffix in {"txt", "caption", "cls", "text"}:
            fields[suffix] = data.decode("utf-8", "replace").strip()
    return fields
