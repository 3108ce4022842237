"""Media as a user gives them (paths, URLs, bytes, PIL images) become references that travel."""

from __future__ import annotations

import hashlib
import io
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, cast, runtime_checkable
from urllib.parse import urlsplit
from urllib.request import url2pathname

from mlxq_schemas import LoadError, MediaRef
from mlxq_schemas.errors import InvalidJob, MediaNotFound, MediaTooLarge
from mlxq_schemas.plain import is_whole, whole

MAX_INLINE_BYTES: Final = 64 * 1024 * 1024
"""Largest file that goes through Redis; larger ones belong on a disk that the workers see."""

_REMOTE = re.compile(r"(https?|data|blob):|(?!file:)[A-Za-z][A-Za-z0-9+.-]+://", re.IGNORECASE)
_FILE = re.compile(r"file:", re.IGNORECASE)


@runtime_checkable
class PillowImage(Protocol):
    """What we use of ``PIL.Image.Image``."""

    mode: str

    def save(self, fp: Any, format: str | None = None, **params: Any) -> None: ...  # noqa: A002
    def convert(self, mode: str) -> PillowImage: ...


@dataclass
class MediaCollector:
    """Turns the media of one job into references; gathers in ``blobs`` what must be stored.

    ``inline`` False leaves local files where they are (as absolute paths), except those whose
    names are not UTF-8: these do not travel, so that their bytes do.
    """

    inline: bool = True
    blobs: dict[str, bytes] = field(default_factory=dict)
    """Bytes by their hex sha256."""

    def reference(self, value: object) -> object:
        """A reference for ``value``; what is none of ours goes through for the job to judge."""
        match value:
            case bytes() | bytearray() | memoryview():
                return {"url": self._store(bytes(value))}
            case Path():
                return self._file(value, str(value))
            case str():
                return self._located({"url": value})
            case MediaRef():
                return self._located(value.model_dump(exclude_none=True))
            case Mapping():
                return self._mapped(cast("Mapping[str, object]", value))
            case PillowImage():
                return {"url": self._store(encode_png(value))}
            case _:
                raise InvalidJob(
                    f"a medium is a {type(value).__name__}; give a path, URL, bytes or PIL image"
                )

    def _mapped(self, value: Mapping[str, object]) -> object:
        url = value.get("url")
        if url is None or isinstance(url, str):
            return self._located(dict(value))
        return {**value, **cast("dict[str, object]", self.reference(url))}

    def _located(self, ref: dict[str, Any]) -> dict[str, Any]:
        url = ref.get("url")
        if not isinstance(url, str) or not url or ref.get("error") or _REMOTE.match(url):
            return ref
        path = _path_of_url(url) if _FILE.match(url) else expanded(url)
        return {**ref, **self._file(path, url)}

    def _file(self, path: Path, given: str) -> dict[str, Any]:
        if not self.inline and is_whole(str(path.absolute())):
            return {"url": str(path.absolute())}
        try:
            return {"url": self._store(read_media(path)), "name": whole(path.name)}
        except (MediaNotFound, MediaTooLarge) as error:
            # Not raised: the job goes on to the worker, and fails there alone and on record.
            problem = LoadError(code=error.code, message=error.message)
            return {"url": whole(given), "error": problem}

    def _store(self, data: bytes) -> str:
        sha256 = hashlib.sha256(data).hexdigest()
        self.blobs[sha256] = data
        return f"blob:{sha256}"


def expanded(text: str) -> Path:
    """A path; a ``~`` at its start is a home folder where that is somebody's."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        return Path(text)


def read_media(path: Path) -> bytes:
    """Bytes of a local file; raises :class:`MediaNotFound` and :class:`MediaTooLarge`."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise MediaNotFound(f"cannot read {path}: it is not a file")
        if status.st_size > MAX_INLINE_BYTES:
            raise MediaTooLarge(
                f"{path} has {status.st_size:,} bytes; at most {MAX_INLINE_BYTES:,} go through "
                "Redis: put it where the workers can read it, and use inline_media=False"
            )
        return path.read_bytes()
    except OSError as error:
        raise MediaNotFound(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:  # a NUL byte in the name
        raise MediaNotFound(f"cannot read {str(path)!r}: {error}") from error


def encode_png(image: PillowImage) -> bytes:
    """PNG bytes of a PIL image, with its EXIF block (which may turn it)."""
    extra: dict[str, Any] = {}
    if (getexif := getattr(image, "getexif", None)) is not None:
        extra["exif"] = getexif()
    buffer = io.BytesIO()
    try:
        image.save(buffer, "PNG", **extra)
    except OSError:  # PNG has no CMYK, YCbCr, LAB ...
        buffer = io.BytesIO()
        image.convert("RGB").save(buffer, "PNG", **extra)
    return buffer.getvalue()


def _path_of_url(url: str) -> Path:
    parts = urlsplit(url)
    host = "" if parts.netloc in ("", "localhost") else f"//{parts.netloc}"
    return Path(host + url2pathname(parts.path))
