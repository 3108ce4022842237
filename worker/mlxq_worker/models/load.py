"""Load a model and its processor from a folder or a hub id."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map_with_path
from mlx_vlm.utils import get_model_path, load

from mlxq_schemas.errors import ModelNotLoaded
from mlxq_worker.bundled import bundled_model_path
from mlxq_worker.models.templates import mend_template

DtypeName = Literal["auto", "float32", "bfloat16", "float16"]
_PARTS = {".json", ".jinja", ".model", ".safetensors", ".txt"}
_WHOLE = 64 * 1024 * 1024
_SAMPLES = 1024
_SAMPLE_BYTES = 4096


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to serve. ``identity`` is ``name@digest`` of settings and weights; ``content``
    the digest and the types in memory, whatever name it was loaded by."""

    model: Any
    processor: Any
    path: Path
    name: str
    identity: str
    content: str
    eos: frozenset[int]
    context: int

    @property
    def tokenizer(self) -> Any:
        """The processor's tokenizer (a text-only processor is one)."""
        return getattr(self.processor, "tokenizer", self.processor)


def load_model(name: str | None = None, dtype: DtypeName = "auto") -> LoadedModel:
    """Load ``name`` (folder or hub id; None is the bundled model) in the calling thread.

    ``dtype`` "auto" keeps the weights' own type on a GPU and takes float32 on a CPU, where
    half precision is slower. Raises :class:`ModelNotLoaded`.
    """
    path = _find(name)
    try:
        with warnings.catch_warnings():
            # Processors warn about their own defaults, and take an error for a wrong processor.
            warnings.simplefilter("ignore")
            model, processor = load(str(path))
    except (OSError, ValueError, KeyError, TypeError, ImportError, RuntimeError) as error:
        raise ModelNotLoaded(f"{path} does not load: {error}") from error
    mend_template(processor)
    _cast(model, dtype)
    config = _read_json(path / "config.json")
    tokenizer = getattr(processor, "tokenizer", processor)
    label = name or path.name
    digest = _digest(path)
    weights: Any = tree_flatten(model.parameters())
    types = {str(value.dtype) for _, value in weights}
    return LoadedModel(
        model=model,
        processor=processor,
        path=path,
        name=label,
        identity=f"{label}@{digest}",
        content=":".join([digest, *sorted(types)]),
        eos=_eos_ids(config, _read_json(path / "generation_config.json"), processor, tokenizer),
        context=_context_length(config),
    )


def _find(name: str | None) -> Path:
    if name is None:
        return bundled_model_path()
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelNotLoaded(f"{path} holds no config.json: name a model folder or a hub id")
        return path.resolve()
    if path.is_absolute() or name.startswith((".", "~")):
        raise ModelNotLoaded(f"no folder {name}: name a model folder or a hub id")
    try:
        return Path(get_model_path(name))
    except Exception as error:  # the hub client's errors share no base class
        raise ModelNotLoaded(
            f"{name!r} is neither a folder nor a hub id that can be fetched: {error}"
        ) from error


def _cast(model: Any, dtype: DtypeName) -> None:
    if dtype == "auto":
        if mx.default_device() != mx.Device(mx.cpu):
            return
        dtype = "float32"
    target = getattr(mx, dtype)

    may_cast = getattr(model, "cast_predicate", lambda _: True)

    def cast(name: str, array: mx.array) -> mx.array:
        floating = mx.issubdtype(array.dtype, mx.floating)
        return array.astype(target) if floating and may_cast(name) else array

    model.update(tree_map_with_path(cast, model.parameters()))
    mx.eval(model.parameters())


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    value = json.loads(path.read_text(encoding="utf-8"))
    return value if isinstance(value, dict) else {}


def _eos_ids(*sources: Any) -> frozenset[int]:
    """End-of-sequence ids from config, generation config and tokenizer: none alone is enough."""
    found: set[int] = set()
    for source in sources:
        if isinstance(source, dict):
            values = [source.get("eos_token_id"), _text_config(source).get("eos_token_id")]
        else:
            names = ("eos_token_id", "additional_eos_token_ids")
            values = [getattr(source, name, None) for name in names]
        for value in values:
            ids = value if isinstance(value, list) else [value]
            found.update(i for i in ids if isinstance(i, int))
    return frozenset(found)


def _text_config(config: dict[str, Any]) -> dict[str, Any]:
    return config.get("text_config") or config.get("llm_config") or {}


def _context_length(config: dict[str, Any]) -> int:
    """Most tokens of prompt and answer together, as the config states it."""
    text = _text_config(config)
    value = text.get("max_position_embeddings") or config.get("max_position_embeddings")
    return int(value) if value else 2**31


def _digest(path: Path) -> str:
    """12 hex digits that tell models apart: their settings, tokenizer, template and weights.

    Large weights are read in samples all over the file.
    """
    digest = hashlib.sha256()
    for file in sorted(path.iterdir()):
        if file.suffix not in _PARTS or not file.is_file():
            continue
        size = file.stat().st_size
        digest.update(f"{file.name}:{size};".encode())
        step, length = (1, size) if size <= _WHOLE else (_SAMPLES, _SAMPLE_BYTES)
        with file.open("rb") as stream:
            for n in range(step):
                stream.seek(size * n // step, os.SEEK_SET)
                digest.update(stream.read(length))
    return digest.hexdigest()[:12]
