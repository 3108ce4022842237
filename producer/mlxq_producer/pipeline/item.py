"""What is captioned, and what came of it."""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, Self
from urllib.parse import unquote, urlsplit

from mlxq_schemas import Result
from mlxq_schemas.errors import MediaNotFound, MlxqError
from mlxq_schemas.plain import plain, to_json, whole


@dataclass(frozen=True)
class Item:
    """One thing to caption.

    ``name`` tells it apart from all others of the run and is what outputs call it. ``media`` is a
    local path, a URL, bytes, or None for a row of text. ``relative`` is where a mirrored folder
    puts it. ``error`` says why the source could not give it.
    """

    name: str
    media: Path | str | bytes | None = None
    fields: Mapping[str, Any] = field(default_factory=dict[str, Any])
    relative: str = ""
    error: MlxqError | None = None

    def __post_init__(self) -> None:
        # Names come from files and manifests of any make, and go into rows, ledger and archives.
        object.__setattr__(self, "name", whole(self.name))
        object.__setattr__(self, "relative", whole(self.relative))

    @cached_property
    def values(self) -> dict[str, Any]:
        """What a prompt template may name: the row's fields and what follows from the name."""
        place = PurePosixPath(
            unquote(urlsplit(self.name).path) if "://" in self.name else self.name
        )
        return {
            "path": self.name,
            "filename": place.name,
            "stem": place.stem,
            "folder": place.parent.name,
            **self.fields,
        }

    def seen(self) -> str | None:
        """What changes when a local file does; None if there is no file.

        Raises :class:`MediaNotFound`.
        """
        if not isinstance(self.media, Path):
            return None
        try:
            status = self.media.stat()
        except (OSError, ValueError) as error:
            raise MediaNotFound(f"cannot read {self.media}: {_reason(error)}") from error
        if not stat.S_ISREG(status.st_mode):
            raise MediaNotFound(f"cannot read {self.media}: it is not a file")
        return f"{status.st_size}:{status.st_mtime_ns}:{status.st_ino}"

    def digest(self) -> str:
        """Hex sha256 of the content; of the address, for a URL. Raises :class:`MediaNotFound`."""
        match self.media:
            case Path():
                try:
                    with self.media.open("rb") as file:
                        return hashlib.file_digest(file, "sha256").hexdigest()
                except (OSError, ValueError) as error:
                    raise MediaNotFound(f"cannot read {self.media}: {_reason(error)}") from error
            case str():
                return hashlib.sha256(b"url:" + whole(self.media).encode()).hexdigest()
            case bytes():
                return hashlib.sha256(self.media).hexdigest()
            case None:
                return "text"


@dataclass(frozen=True)
class Outcome:
    """What a job gave: ``text``, or ``code`` and ``message`` of why there is none."""

    text: str = ""
    code: str | None = None
    message: str | None = None
    reason: str | None = None
    model: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0

    @classmethod
    def of(cls, result: Result) -> Self:
        """The outcome that a job's result stands for."""
        model = result.provenance.model if result.provenance is not None else None
        if not result.ok:
            message = result.message or f"the job was {result.type}"
            # The item has a name of its own, by which its user knows it.
            message = message.removeprefix(f"job {result.job}: ")
            return cls(code=result.code or result.type, message=message)
        usage = result.usage
        return cls(
            text=result.text or "",
            reason=result.reason,
            model=model,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
        )

    @classmethod
    def failure(cls, error: MlxqError) -> Self:
        """The outcome of an item that never became a job."""
        return cls(code=error.code, message=error.message)

    @property
    def ok(self) -> bool:
        """True if there is a text."""
        return self.code is None


@dataclass(frozen=True)
class Row:
    """One row of output: an item and its outcome; ``status`` is ``done`` or ``failed``."""

    source: str
    status: str
    text: str
    code: str | None = None
    message: str | None = None
    reason: str | None = None
    model: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    fields: dict[str, Any] = field(default_factory=dict[str, Any])

    @classmethod
    def of(cls, item: Item, outcome: Outcome) -> Self:
        """The row of an item, in text and numbers that every output can hold."""
        status = "done" if outcome.ok else "failed"
        return cls(item.name, status, **plain(asdict(outcome)), fields=_fields(item.fields))

    @property
    def ok(self) -> bool:
        """True if there is a text."""
        return self.status == "done"

    def as_dict(self) -> dict[str, Any]:
        """Plain values; what is not there is left out."""
        return {k: v for k, v in asdict(self).items() if v is not None and v != {}}

    def as_json(self) -> str:
        """One line of strict JSON."""
        return to_json(self.as_dict())

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The row that :meth:`as_json` wrote."""
        return cls(**json.loads(text))


def printable(path: Path) -> str:
    """A path as text that can be written to any file, also where it is no UTF-8."""
    return whole(str(path))


def _fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a manifest's row that are no bytes and nothing else that JSON cannot say."""
    found: dict[str, Any] = {}
    for name, value in given.items():
        with suppress(TypeError, ValueError, RecursionError):
            found |= plain({name: value})
    return found


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
