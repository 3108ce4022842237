"""What tells models apart: the content of a folder, wherever it lies and whoever copied it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from mlxq_worker.models.digests import digests
from mlxq_worker.models.remote_code import PYTHON, walk

DIGITS: Final = 12
_SETTINGS: Final = {".json", ".jsonl", ".jinja", ".model", ".spm", ".tiktoken", ".txt", ".vocab"}
_WEIGHTS: Final = {".safetensors", ".npz", ".gguf"}

State = tuple[tuple[str, int, int, int], ...]


def folder_digest(folder: Path, *, with_python: bool = False) -> str:
    """12 hex digits over all that a model's text depends on: config, generation config, tokenizer,
    processor settings, chat templates and weights; with ``with_python`` its Python too.

    Every byte counts; large files are read once and remembered. Raises OSError.
    """
    parts = dict(sorted(_parts(folder, with_python=with_python)))
    known = digests(parts.values())
    digest = hashlib.sha256()
    for name, file in parts.items():
        digest.update(f"{len(name.encode())}:{name}:".encode() + known[file])
    return digest.hexdigest()[:DIGITS]


def folder_state(folder: Path, *, with_python: bool = False) -> State:
    """Another value when a file of the folder has been replaced or written to."""
    found = ((name, file.stat()) for name, file in _parts(folder, with_python=with_python))
    return tuple(sorted((name, s.st_size, s.st_mtime_ns, s.st_ino) for name, s in found))


def _parts(folder: Path, *, with_python: bool) -> Iterator[tuple[str, Path]]:
    """Files by relative name. Of subfolders only templates count: the rest may be other models."""
    for file in walk(folder):
        name = file.relative_to(folder).as_posix()
        top = "/" not in name
        if (
            (top and file.suffix in _SETTINGS | _WEIGHTS)
            or file.suffix == ".jinja"
            or (with_python and file.suffix in PYTHON)
        ):
            yield name, file


def identity(name: str, content: str) -> str:
    """``name@digest``: the name is for people, the digest says who may go on with whose text.

    ``content`` is a folder's digest, the types in memory, and the libraries' versions.
    """
    return f"{name}@{hashlib.sha256(content.encode()).hexdigest()[:DIGITS]}"
