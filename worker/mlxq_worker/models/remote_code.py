"""Python that a model folder brings: found, named, and kept away from what would run it.

Transformers and mlx-vlm run it where settings name it (``auto_map``, ``model_file``), and some of
mlx-vlm's processors do so although they are told not to. So they are given a view of the folder, in
which there is no Python, and nothing that names any.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

PYTHON: Final = {".py", ".pyc", ".pyd", ".so"}
MODEL_FILE: Final = "model_file"
PROCESSORS: Final = {
    "AutoFeatureExtractor",
    "AutoImageProcessor",
    "AutoProcessor",
    "AutoTokenizer",
    "AutoVideoProcessor",
}
_AUTO_MAP: Final = "auto_map"
_SHOWN: Final = 5


@dataclass(frozen=True)
class RemoteCode:
    """``files`` hold Python or settings that name some, by relative name. ``roles`` are what the
    settings name it for: ``AutoTokenizer`` and the like, ``model_file``.
    """

    files: tuple[str, ...] = ()
    roles: frozenset[str] = frozenset()

    def __str__(self) -> str:
        more = len(self.files) - _SHOWN
        return ", ".join(self.files[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def walk(folder: Path) -> Iterator[Path]:
    """All files of a model folder but what is hidden."""
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith((".", "__pycache__"))]
        yield from (Path(parent, name) for name in names if not name.startswith("."))


def find_remote_code(folder: Path) -> RemoteCode:
    """What Python a folder brings or names. Raises OSError."""
    files: list[str] = []
    roles: set[str] = set()
    for file in walk(folder):
        found = set[str]()
        settings = _settings(file)
        if settings is not None:
            _strip(settings, found)
        if found or file.suffix in PYTHON:
            files.append(file.relative_to(folder).as_posix())
        roles |= found
    return RemoteCode(tuple(sorted(files)), frozenset(roles))


def data_only(folder: Path) -> Path:
    """A view of the folder without Python, in a temporary folder of its own: its files by link,
    and settings without what names Python. Raises OSError.
    """
    view = Path(tempfile.mkdtemp(prefix="mlxq-model-"), folder.name)
    try:
        for file in walk(folder):
            if file.suffix not in PYTHON:
                _show(file, view / file.relative_to(folder))
    except BaseException:
        shutil.rmtree(view.parent, ignore_errors=True)
        raise
    return view


def _show(file: Path, place: Path) -> None:
    found = set[str]()
    settings = _settings(file)
    rest = None if settings is None else _strip(settings, found)
    place.parent.mkdir(parents=True, exist_ok=True)
    if not found:
        place.symlink_to(file.absolute())
    elif rest and rest.keys() != {_AUTO_MAP}:
        place.write_text(json.dumps(rest), encoding="utf-8")


def _settings(file: Path) -> dict[str, Any] | None:
    """The map in a JSON file that may name Python; None for all others."""
    if file.suffix != ".json":
        return None
    data = file.read_bytes()
    # An escape may hide a key; to parse all of a tokenizer takes long.
    if not any(mark in data for mark in (_AUTO_MAP.encode(), MODEL_FILE.encode(), b"\\u")):
        return None
    try:
        value = json.loads(data)
    except ValueError:
        return None  # nor can the libraries read it
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def _strip(settings: dict[str, Any], found: set[str], *, top: bool = True) -> dict[str, Any]:
    """The settings without what names Python; what it is named for goes to ``found``.

    An empty ``auto_map`` stays, since some families' configs must have one.
    """
    rest: dict[str, Any] = {}
    for key, value in settings.items():
        # In a vocabulary the same words are keys of numbers.
        if key == _AUTO_MAP and isinstance(value, dict):
            found.update(cast("dict[str, Any]", value))
            rest[key] = {}
        elif key == _AUTO_MAP and isinstance(value, (list, str)):
            found.add("AutoTokenizer")  # the form of old tokenizers
        elif key == MODEL_FILE and top and isinstance(value, str):
            found.add(MODEL_FILE)
        elif isinstance(value, dict):
            rest[key] = _strip(cast("dict[str, Any]", value), found, top=False)
        else:
            rest[key] = value
    return rest
