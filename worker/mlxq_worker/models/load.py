"""Load a model and its processor from a folder or a hub id."""

from __future__ import annotations

import json
import logging
import shutil
import warnings
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map_with_path
from mlx_vlm.utils import get_model_and_args, get_model_path, load, load_processor

from mlxq_schemas.errors import ModelNotLoaded, RemoteCodeNeeded
from mlxq_worker.bundled import bundled_model_path
from mlxq_worker.models.identity import folder_digest, folder_state, identity
from mlxq_worker.models.placement import on_cpu, rounding
from mlxq_worker.models.remote_code import (
    MODEL_FILE,
    PROCESSORS,
    RemoteCode,
    data_only,
    find_remote_code,
)
from mlxq_worker.models.templates import mend_template
from mlxq_worker.models.versions import library_versions

DtypeName = Literal["auto", "float32", "bfloat16", "float16"]
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to serve. ``content`` is a digest of its settings and weights, and the types in
    memory, whatever name it was loaded by; ``identity`` is ``name@digest`` of that."""

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


def load_model(
    name: str | None = None, dtype: DtypeName = "auto", *, trust_remote_code: bool = False
) -> LoadedModel:
    """Load ``name`` (folder or hub id; None is the bundled model) in the calling thread.

    ``dtype`` "auto" keeps the weights' own type on a GPU and takes float32 on a CPU, where
    half precision is slower. Python in the folder runs only with ``trust_remote_code``, and then
    with all rights of the process. Raises :class:`ModelNotLoaded`, or its kind
    :class:`RemoteCodeNeeded` for a folder that does not load without its Python.
    """
    path = _find(name)
    try:
        before = folder_state(path, with_python=trust_remote_code)
        with warnings.catch_warnings():
            # Processors warn about their own defaults, and take an error for a wrong processor.
            warnings.simplefilter("ignore")
            model, processor = _load(path, trust_remote_code=trust_remote_code)
        digest = folder_digest(path, with_python=trust_remote_code)
    except ModelNotLoaded:
        raise
    except Exception as error:  # the libraries' errors share no base class
        raise ModelNotLoaded(f"{path} does not load: {error}") from error
    mend_template(processor)
    _cast(model, dtype)
    mx.eval(model.parameters())
    if folder_state(path, with_python=trust_remote_code) != before:
        raise ModelNotLoaded(
            f"{path} changed while it was loaded: wait until its files are complete, then start "
            "the worker again"
        )
    config = _read_json(path / "config.json")
    tokenizer = getattr(processor, "tokenizer", processor)
    label = name or path.name
    weights: Any = tree_flatten(model.parameters())
    types = sorted({str(value.dtype) for _, value in weights})
    content = ":".join([digest, *types, *rounding(types), library_versions()])
    return LoadedModel(
        model=model,
        processor=processor,
        path=path,
        name=label,
        identity=identity(path.name if _is_folder(label) else label, content),
        content=content,
        eos=eos_ids(config, _read_json(path / "generation_config.json"), processor, tokenizer),
        context=_context_length(config),
    )


def _load(path: Path, *, trust_remote_code: bool) -> tuple[Any, Any]:
    """Model and processor. Without trust, Python in the folder is out of the libraries' reach."""
    if trust_remote_code:
        return load(str(path), trust_remote_code=True)
    code = find_remote_code(path)
    if not code.files:
        return load(str(path), trust_remote_code=False)
    log.warning("%s brings Python of its own, which does not run: %s", path, code)
    view = data_only(path)
    try:
        model, processor = load(str(view), trust_remote_code=False)
        _check_processor(view, processor, code)
    except Exception as error:
        needed = _needs(view, code)
        shutil.rmtree(view.parent, ignore_errors=True)
        message = str(error).replace(str(view), str(path))
        if needed:
            raise RemoteCodeNeeded(
                f"{path} does not load without the Python that it brings ({code}): {message}. "
                "That could do all that you may do: read it, and if you trust it, start the worker "
                "with --trust-remote-code; or name a model that comes without"
            ) from error
        raise ModelNotLoaded(f"{path} does not load: {message}") from error
    # Weights that a model reads as it goes are found by way of the view.
    weakref.finalize(model, shutil.rmtree, view.parent, ignore_errors=True)
    return model, processor


def _check_processor(view: Path, processor: Any, code: RemoteCode) -> None:
    """Raise ValueError for a model of pictures that would go without its own image processor."""
    sees = bool(_read_json(view / "config.json").get("vision_config"))
    if sees and code.roles & PROCESSORS and not hasattr(processor, "image_processor"):
        raise ValueError("no image processor is known for it but its own")


def _needs(view: Path, code: RemoteCode) -> bool:
    """Whether Python is what a folder lacks that did not load, rather than sound files."""
    if MODEL_FILE in code.roles:
        return True
    try:
        get_model_and_args(_read_json(view / "config.json"))
    except Exception:  # noqa: BLE001 - the family is unknown
        return bool(code.roles - PROCESSORS)
    try:
        _check_processor(view, load_processor(view, trust_remote_code=False), code)
    except Exception:  # noqa: BLE001 - what it raises depends on what is lacking
        return bool(code.roles & PROCESSORS)
    return False


def _is_folder(name: str) -> bool:
    return Path(name).expanduser().is_dir()


def _find(name: str | None) -> Path:
    if name is None:
        return bundled_model_path()
    path = Path(name).expanduser()
    if _is_folder(name):
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
        if not on_cpu():
            return
        dtype = "float32"
    target = getattr(mx, dtype)

    may_cast = getattr(model, "cast_predicate", lambda _: True)

    def cast(name: str, array: mx.array) -> mx.array:
        floating = mx.issubdtype(array.dtype, mx.floating)
        return array.astype(target) if floating and may_cast(name) else array

    model.update(tree_map_with_path(cast, model.parameters()))


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    value = json.loads(path.read_text(encoding="utf-8"))
    return value if isinstance(value, dict) else {}


def eos_ids(*sources: Any) -> frozenset[int]:
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
