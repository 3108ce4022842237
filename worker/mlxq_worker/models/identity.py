"""What tells models apart: the content of a folder, wherever it lies and whoever copied it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from mlxq_worker.models.remote_code import PYTHON, walk

DIGITS: Final = 12
_SETTINGS: Final = {".json", ".jsonl", ".jinja", ".model", ".spm", ".tiktoken", ".txt", ".vocab"}
_WEIGHTS: Final = {".safetensors"}
_WHOLE: Final = 64 * 1024 * 1024
_SAMPLES: Final = 1024
_SAMPLE_BYTES: Final = 4096


def folder_digest(folder: Path, *, with_python: bool = False) -> str:
    """12 hex digits over all that a model's text depends on: config, generation config, tokenizer,
    processor settings, chat templates and weights; with ``with_python`` its Python too.

    Large weights are read in samples all over the file. Raises OSError.
    """
    digest = hashlib.sha256()
    for name, file in sorted(_parts(folder, with_python=with_python)):
        size = file.stat().st_size
        digest.update(f"{name}:{size};".encode())
        step, length = (1, size) if size <= _WHOLE else (_SAMPLES, _SAMPLE_BYTES)
        with file.open("rb") as stream:
            for n in range(step):
                stream.seek(size * n // step, os.SEEK_SET)
                digest.update(stream.read(length))
    return digest.hexdigest()[:DIGITS]


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

    ``content`` is a folder's digest and the types in memory.
    """
    return f"{name}@{hashlib.sha256(content.encode()).hexdigest()[:DIGITS]}"
