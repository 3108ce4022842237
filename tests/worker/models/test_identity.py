"""An identity changes with all that a text depends on, and with nothing else."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mlxq_worker.models.load as load_module
import tiny_models
from mlxq_schemas.errors import ModelNotLoaded
from mlxq_worker.build import build_backend
from mlxq_worker.config import WorkerConfig
from mlxq_worker.models.load import load_model
from mlxq_worker.models.quantised import Quantisation


@pytest.fixture
def copy(folders: Callable[[str], Path], tmp_path: Path) -> Path:
    """A folder of a model of pictures that a test may change."""
    return Path(shutil.copytree(folders("idefics3"), tmp_path / "here" / "model"))


def change(file: Path, **settings: Any) -> None:
    known = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(known | settings))


def identities(folder: Path) -> tuple[str, str]:
    loaded = load_model(str(folder), "float32")
    return loaded.identity, loaded.content


CHANGES: dict[str, Callable[[Path], object]] = {
    "end of sequence": lambda f: change(f / "generation_config.json", eos_token_id=[7]),
    "sampling defaults": lambda f: change(f / "generation_config.json", temperature=0.5),
    "size of pictures": lambda f: change(f / "preprocessor_config.json", size={"longest_edge": 96}),
    "tokens a picture": lambda f: change(f / "processor_config.json", image_seq_len=9),
    "size of videos": lambda f: change(f / "video_preprocessor_config.json", fps=1),
    "template": lambda f: change(f / "tokenizer_config.json", chat_template="{{ messages }}"),
    "template as a file": lambda f: (f / "chat_template.jinja").write_text("{{ messages }}"),
    "template as JSON": lambda f: change(f / "chat_template.json", chat_template="{{ messages }}"),
    "another template": lambda f: [
        (f / "additional_chat_templates").mkdir(),
        (f / "additional_chat_templates" / "tool_use.jinja").write_text("{{ messages }}"),
    ],
    "start token": lambda f: change(f / "tokenizer_config.json", add_bos_token=True),
    "special tokens": lambda f: change(f / "special_tokens_map.json", eos_token="<|im_end|>"),
    "added tokens": lambda f: change(f / "added_tokens.json", word=5),
    "merges": lambda f: (f / "merges.txt").write_text("a b\n"),
    "ranks": lambda f: (f / "words.tiktoken").write_text("YQ== 0\n"),
    "pieces": lambda f: (f / "tokenizer.model").write_bytes(b"\x0a\x00"),
    "context": lambda f: change(
        f / "config.json",
        text_config={
            **json.loads((f / "config.json").read_text())["text_config"],
            "max_position_embeddings": 512,
        },
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_changes_a_text_changes_the_identity(what: str, copy: Path) -> None:
    before = identities(copy)
    CHANGES[what](copy)
    after = identities(copy)
    assert before[0] != after[0]
    assert before[1] != after[1]


def test_the_tokenizer_counts(copy: Path) -> None:
    before = identities(copy)
    whole = json.loads((copy / "tokenizer.json").read_text())
    change(copy / "tokenizer.json", **(whole | {"normalizer": {"type": "Lowercase"}}))
    assert identities(copy) != before


def test_the_same_folder_elsewhere_is_the_same(copy: Path, tmp_path: Path) -> None:
    before = identities(copy)
    other = Path(shutil.copytree(copy, tmp_path / "there" / "model"))
    for file in other.iterdir():
        os.utime(file, (1_000_000_000, 1_000_000_000))
    link = tmp_path / "link" / "model"
    link.parent.mkdir()
    link.symlink_to(other)
    assert identities(other) == identities(link) == before
    assert before[0].startswith("model@")
    renamed = identities(other.rename(tmp_path / "renamed"))
    assert renamed[0].startswith("renamed@")
    assert renamed[0].partition("@")[2] == before[0].partition("@")[2]
    assert renamed[1] == before[1]


def test_what_no_text_depends_on_does_not_count(copy: Path) -> None:
    before = identities(copy)
    (copy / "README.md").write_text("A model.")
    (copy / "convert.py").write_text("print('it does not run')")
    (copy / ".cache").mkdir()
    (copy / ".cache" / "download.json").write_text("{}")
    (copy / "checkpoint-1").mkdir()
    (copy / "checkpoint-1" / "config.json").write_text("{}")
    assert identities(copy) == before


def test_precision_counts(folders: Callable[[str], Path]) -> None:
    names = {
        load_model(str(folders("llama")), dtype).identity
        for dtype in ("float32", "bfloat16", "float16")
    }
    assert len(names) == 3


def served(folder: Path, **settings: Any) -> str:
    backend = build_backend(WorkerConfig(model=str(folder), **settings))
    backend.generator.close()
    assert backend.identity in backend.names
    return backend.identity


def test_a_workers_settings_count_where_texts_depend_on_them(tmp_path: Path) -> None:
    folder = tiny_models.build_wide("llama", tmp_path / "wide")
    plain = served(folder)
    others: list[dict[str, Any]] = [
        {"dtype": "bfloat16"},
        {"kv_bits": 8, "kv_group_size": 32},
        {"kv_bits": 4, "kv_group_size": 32},
        {"kv_bits": 8, "kv_group_size": 32, "kv_start": 512},
    ]
    names = [plain, *(served(folder, **settings) for settings in others)]
    assert len(set(names)) == len(names)
    assert all(len(name) < 40 for name in names)
    same: list[dict[str, Any]] = [
        {"max_rows": 2, "prefill_step": 7, "prefix_cache_bytes": 0, "model_name": "other"},
        {"kv_group_size": 32, "kv_start": 5},
    ]
    assert {served(folder, **settings) for settings in same} == {plain}


def test_scales_shared_by_more_values_count() -> None:
    labels = {Quantisation(8, size, start).label for size in (32, 64, 128) for start in (0, 9)}
    assert len(labels) == 6


def test_other_libraries_are_another_identity(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = identities(copy)
    monkeypatch.setattr("mlxq_worker.models.load.library_versions", lambda: "mlx=0")
    assert identities(copy)[0] != before[0]


def test_files_that_change_while_they_load_are_refused(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*given: Any, **options: Any) -> Any:
        loaded = plain(*given, **options)
        change(copy / "generation_config.json", eos_token_id=[9])
        return loaded

    plain = load_module.load
    monkeypatch.setattr(load_module, "load", load)
    with pytest.raises(ModelNotLoaded, match="changed while it was loaded"):
        load_model(str(copy), "float32")
