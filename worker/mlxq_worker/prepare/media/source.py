"""From a reference to bytes, whichever way a medium is given."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final
from urllib.parse import unquote, unquote_to_bytes, urlsplit

from mlxq_schemas import LoadError, MediaRef
from mlxq_schemas.errors import (
    MediaError,
    MediaForbidden,
    MediaNotFound,
    MediaTooLarge,
)
from mlxq_worker.prepare.media.http import fetch
from mlxq_worker.prepare.media.naming import shown
from mlxq_worker.prepare.media.policy import MediaPolicy

BlobReader = Callable[[str], bytes | None]
"""Bytes of an inlined medium by its sha256, or None if the queue does not hold them."""

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_SHA256: Final = re.compile(r"[0-9a-f]{64}\Z")
_BASE64_SPACE: Final = re.compile(r"\s+")


def read_source(ref: MediaRef, policy: MediaPolicy, read_blob: BlobReader) -> bytes:
    """The bytes that ``ref`` stands for, within the limits of ``policy``.

    Raises :class:`MediaError` or one of its kinds, naming the medium.
    """
    if ref.error is not None:
        raise producer_error(ref.error)
    scheme = _SCHEME.match(ref.url)
    match scheme and scheme[1].lower():
        case "data":
            data = _from_data_uri(ref.url, policy)
        case "blob":
            data = _from_blob(ref.url, read_blob)
        case "http" | "https":
            data = _from_network(ref.url, policy)
        case "file":
            data = _from_file(_path_of(ref.url), policy)
        case None:
            data = _from_file(ref.url, policy)
        case _:
            raise MediaForbidden(
                f"{shown(ref.url)}: media come as data:, blob:, http(s):, file: or a path"
            )
    if len(data) > policy.max_bytes:
        raise _too_large(ref.url, len(data), policy)
    if not data:
        raise MediaError(f"{shown(ref.url)} is empty")
    return data


def producer_error(error: LoadError) -> MediaError:
    """The error that the producer met when it read the medium, as the worker raises it."""
    for kind in _kinds(MediaError):
        if kind.code == error.code:
            return kind(error.message)
    return MediaError(f"{error.message} ({error.code})")


def _kinds(kind: type[MediaError]) -> Iterator[type[MediaError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _kinds(child)


def _too_large(url: str, size: int, policy: MediaPolicy) -> MediaTooLarge:
    return MediaTooLarge(
        f"{shown(url)} has {size:,} bytes; at most {policy.max_bytes:,} are allowed"
    )


def _from_data_uri(url: str, policy: MediaPolicy) -> bytes:
    head, comma, payload = url.partition(",")
    if not comma:
        raise MediaError(f"{shown(url)} is broken: a data: URI has a comma before its data")
    if not head.lower().endswith(";base64"):
        return unquote_to_bytes(payload)
    size = len(payload) * 3 // 4
    if size > 2 * policy.max_bytes:  # before copies of it are made
        raise _too_large(url, size, policy)
    try:
        return base64.b64decode(payload, validate=True)
    except ValueError:  # broken over lines, or escaped: most are neither
        text = _BASE64_SPACE.sub("", unquote(payload))
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise MediaError(f"{shown(url)} is not valid base64: {error}") from error


def _from_blob(url: str, read_blob: BlobReader) -> bytes:
    sha256 = url.partition(":")[2]
    if not _SHA256.match(sha256):
        raise MediaError(f"{shown(url)} is not a blob: give 64 lower-case hex digits of its sha256")
    data = read_blob(sha256)
    if data is None:
        raise MediaNotFound(
            f"{shown(url)} is not in the queue (any more): it expired, or was evicted or deleted; "
            "submit the job again under another id, with its media"
        )
    if hashlib.sha256(data).hexdigest() != sha256:
        raise MediaError(f"{shown(url)} holds other bytes than its name says: store it again")
    return data


def _from_network(url: str, policy: MediaPolicy) -> bytes:
    if not policy.allow_http:
        raise MediaForbidden(
            f"{shown(url)}: this worker downloads nothing (--no-http): send the bytes"
        )
    return fetch(url, policy)


def _path_of(url: str) -> str:
    parts = urlsplit(url)
    if parts.netloc not in {"", "localhost"}:
        raise MediaForbidden(f"{shown(url)}: a file: URL may name no host")
    return unquote(parts.path)


def _from_file(path: str, policy: MediaPolicy) -> bytes:
    """Read a file under one of the roots; a relative path is looked up in each root."""
    resolved = _under_roots(path, policy)
    # The last step must not be a link that was laid after the check; a pipe must not block.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(resolved, flags)
    except FileNotFoundError as error:
        raise MediaNotFound(f"{shown(path)} does not exist{_looked_up(path)}") from error
    except OSError as error:
        raise MediaForbidden(f"{shown(path)} cannot be read: {error.strerror}") from error
    try:
        return _read_open(descriptor, path, policy)
    finally:
        os.close(descriptor)


def _looked_up(path: str) -> str:
    return "" if path.startswith("/") else " in the folders of --media-root"


def _read_open(descriptor: int, path: str, policy: MediaPolicy) -> bytes:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise MediaError(f"{shown(path)} is not a file")
    if status.st_size > policy.max_bytes:
        raise _too_large(path, status.st_size, policy)
    with os.fdopen(descriptor, "rb", closefd=False) as file:
        return file.read(policy.max_bytes + 1)


def _under_roots(path: str, policy: MediaPolicy) -> Path:
    """The real path. Whether a file outside the roots exists is nobody's business."""
    inside: list[Path] = []
    try:
        for root in policy.roots:
            real_root = root.resolve()
            real = (real_root / path).resolve()
            if real.is_relative_to(real_root):
                inside.append(real)
    except (OSError, RuntimeError, ValueError) as error:  # loops of links, NUL, endless names
        raise MediaNotFound(f"{shown(path)} is not a usable path") from error
    if not inside:
        raise MediaForbidden(
            f"{shown(path)} is outside the folders that may be read: name its folder with "
            "--media-root (relative paths are looked up in each), or send the bytes"
        )
    return next((real for real in inside if os.path.lexists(real)), inside[0])
