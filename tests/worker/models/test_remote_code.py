"""Python in a model's folder does not run, whatever names it; the model loads nevertheless."""

from __future__ import annotations

import gc
import json
import logging
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx_vlm
import pytest

import tiny_models
from mlxq_schemas import Job
from mlxq_schemas.errors import ModelNotLoaded, RemoteCodeNeeded, TemplateFailed
from mlxq_worker.models import load, remote_code
from mlxq_worker.models.load import load_model
from mlxq_worker.models.templates import UNGUARDED, render
from mlxq_worker.prepare.prompt import render_prompt

ALL = [*tiny_models.FAMILIES, *tiny_models.KIN]
SETTINGS = (
    "config.json",
    "tokenizer_config.json",
    "processor_config.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "generation_config.json",
)
AUTO_MAP = {
    "AutoConfig": "configuration_own.Own",
    "AutoModelForCausalLM": "modeling_own.Own",
    "AutoTokenizer": ["tokenization_own.Own", "tokenization_own.Own"],
    "AutoProcessor": "processing_own.Own",
    "AutoImageProcessor": "image_processing_own.Own",
    "AutoVideoProcessor": "video_processing_own.Own",
}
STEMS = (
    "configuration",
    "modeling",
    "tokenization",
    "processing",
    "image_processing",
    "video_processing",
)
MESSAGES = [{"role": "user", "content": [{"type": "text", "text": "Who?"}]}]


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """A file that exists once a planted file has run."""
    return tmp_path / "ran"


@pytest.fixture
def copy(folders: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """A family's folder that a test may change."""

    def make(name: str) -> Path:
        place = tmp_path / name
        place.mkdir()
        for file in folders(name).iterdir():
            (place / file.name).write_bytes(file.read_bytes())
        return place

    return make


def plant(folder: Path, mark: Path, more: str = "") -> None:
    for stem in STEMS:
        body = f"open({str(mark)!r}, 'a').write('{stem} ')\n{more}"
        (folder / f"{stem}_own.py").write_text(body)


def change(file: Path, **settings: Any) -> None:
    known = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(known | settings))


def quiet(mark: Path) -> bool:
    """Nothing ran, and transformers keeps no copy of it to import."""
    return not mark.exists() and not any(n.startswith("transformers_modules") for n in sys.modules)


@pytest.mark.parametrize("name", ALL)
def test_every_family_loads_and_nothing_runs(name, load, copy, mark, caplog):
    folder = copy(name)
    plant(folder, mark)
    for settings in SETTINGS:
        change(folder / settings, auto_map=AUTO_MAP)
    change(folder / "config.json", model_file="modeling_own.py")
    with caplog.at_level(logging.WARNING, logger="mlxq_worker"):
        loaded = load_model(str(folder), "float32")
    assert quiet(mark)
    plain = load(name).loaded
    assert type(loaded.processor) is type(plain.processor)
    assert type(loaded.tokenizer) is type(plain.tokenizer)
    assert loaded.path == folder
    assert (loaded.eos, loaded.context) == (plain.eos, plain.context)
    assert render(loaded.processor, MESSAGES) == render(plain.processor, MESSAGES)
    [warning] = [r.getMessage() for r in caplog.records if r.name.startswith("mlxq_worker")]
    assert str(folder) in warning
    assert "configuration_own.py" in warning


@pytest.mark.parametrize("name", ["qwen3_vl", "internvl_chat", "llama"])
@pytest.mark.parametrize("settings", SETTINGS)
def test_no_settings_file_gets_it_to_run(name, settings, copy, mark):
    folder = copy(name)
    plant(folder, mark)
    change(folder / settings, auto_map=AUTO_MAP)
    load_model(str(folder), "float32")
    assert quiet(mark)


@pytest.mark.parametrize("name", ["qwen3_vl", "internvl_chat", "llama"])
@pytest.mark.parametrize("where", ["../outside--{}", "sub.{}"])
def test_nor_does_code_of_elsewhere(name, where, copy, mark):
    """Of another repository that a folder names, or of a subfolder."""
    folder = copy(name)
    for place in (folder, folder.parent, folder / "sub", folder.parent / "outside"):
        place.mkdir(exist_ok=True)
        plant(place, mark)
    named = {key: where.format(value) for key, value in AUTO_MAP.items() if isinstance(value, str)}
    named["AutoTokenizer"] = [where.format("tokenization_own.Own")] * 2
    for settings in SETTINGS:
        change(folder / settings, auto_map=named)
    load_model(str(folder), "float32")
    assert quiet(mark)


@pytest.mark.parametrize(
    "auto_map", [["tokenization_own.Own", None], {"AutoTokenizer": [None, "tokenization_own.Own"]}]
)
def test_the_old_forms_do_not_run(auto_map, copy, mark):
    folder = copy("qwen3")
    plant(folder, mark)
    change(folder / "tokenizer_config.json", auto_map=auto_map)
    load_model(str(folder), "float32")
    assert quiet(mark)


def test_nested_settings_do_not_run(copy, mark):
    folder = copy("gemma4")
    plant(folder, mark)
    whole = json.loads((folder / "processor_config.json").read_text())
    whole["image_processor"]["auto_map"] = AUTO_MAP
    change(folder / "processor_config.json", **whole)
    load_model(str(folder), "float32")
    assert quiet(mark)


def test_an_escaped_name_does_not_run(copy, mark):
    folder = copy("internvl_chat")
    plant(folder, mark)
    change(folder / "tokenizer_config.json", auto_map=AUTO_MAP)
    for name in ("tokenizer_config.json", "config.json"):
        text = (folder / name).read_text().replace("auto_map", "\\u0061uto_map")
        (folder / name).write_text(
            text.replace('{"', '{"model_f\\u0069le": "modeling_own.py", "', 1)
        )
    load_model(str(folder), "float32")
    assert quiet(mark)


@pytest.mark.parametrize("where", ["modeling_own.py", "../modeling_own.py", "sub/modeling_own.py"])
def test_the_librarys_own_way_to_load_code_does_not_run(where, copy, mark):
    folder = copy("qwen3")
    plant(folder, mark)
    plant(folder.parent, mark)
    (folder / "sub").mkdir()
    plant(folder / "sub", mark)
    change(folder / "config.json", model_file=where)
    load_model(str(folder), "float32")
    assert quiet(mark)


def test_python_that_nothing_names_is_named_in_a_warning(copy, mark, caplog):
    folder = copy("llama")
    plant(folder, mark)
    with caplog.at_level(logging.WARNING, logger="mlxq_worker"):
        load_model(str(folder), "float32")
    assert quiet(mark)
    assert "modeling_own.py" in caplog.text


def test_a_plain_folder_loads_without_a_word(folders, caplog):
    with caplog.at_level(logging.WARNING, logger="mlxq_worker"):
        load_model(str(folders("llama")), "float32")
    assert not caplog.records


def test_a_word_of_the_vocabulary_stays(copy):
    """``auto_map`` may be a token, or a tensor."""
    folder = copy("llama")
    change(folder / "added_tokens.json", auto_map=5, model_file=6)
    assert remote_code.find_remote_code(folder).files == ()


TOKENIZER = """
from transformers import PreTrainedTokenizer
class Own(PreTrainedTokenizer):
    def __init__(self, **settings):
        self.words = ["<|im_start|>", "<|im_end|>", "<s>", *map(chr, range(32, 127))]
        super().__init__(**settings)
    vocab_size = property(lambda self: len(self.words))
    def get_vocab(self):
        return {word: n for n, word in enumerate(self.words)}
    def _tokenize(self, text):
        return list(text)
    def _convert_token_to_id(self, token):
        return self.words.index(token) if token in self.words else 0
    def _convert_id_to_token(self, n):
        return self.words[n]
    def save_vocabulary(self, *_, **__):
        return ()
"""


@pytest.fixture
def needing(copy, mark) -> Path:
    """A folder whose tokenizer is Python only."""
    folder = copy("llama")
    plant(folder, mark, TOKENIZER)
    (folder / "tokenizer.json").unlink()
    named = {"AutoTokenizer": ["tokenization_own.Own", None]}
    change(folder / "tokenizer_config.json", auto_map=named, tokenizer_class="Own")
    return folder


def test_a_folder_that_needs_its_python_is_refused(needing, mark):
    with pytest.raises(RemoteCodeNeeded) as caught:
        load_model(str(needing), "float32")
    assert quiet(mark)
    error = caught.value
    assert error.code == "remote_code_needed"
    assert isinstance(error, ModelNotLoaded)
    for word in (str(needing), "tokenization_own.py", "--trust-remote-code"):
        assert word in error.message
    assert "mlxq-model-" not in error.message


@pytest.fixture
def forgotten(monkeypatch, tmp_path):
    """What transformers copies and imports is gone when the test ends."""
    from transformers import dynamic_module_utils

    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in [name for name in sys.modules if name.startswith("transformers_modules")]:
        del sys.modules[name]


@pytest.mark.usefixtures("forgotten")
def test_with_trust_it_runs(needing, mark):
    loaded = load_model(str(needing), "float32", trust_remote_code=True)
    assert "tokenization" in mark.read_text()
    assert type(loaded.tokenizer).__name__ == "Own"
    other = needing / "tokenization_own.py"
    other.write_text(other.read_text() + "\n# another tokenizer\n")
    again = load_model(str(needing), "float32", trust_remote_code=True)
    assert again.identity != loaded.identity


def test_with_trust_the_models_own_code_runs(copy, mark):
    folder = copy("llama")
    plant(folder, mark, "from mlx_vlm.models.llama import *\n")
    change(folder / "config.json", model_file="modeling_own.py")
    load_model(str(folder), "float32", trust_remote_code=True)
    assert mark.read_text() == "modeling "


def test_a_family_that_only_the_folder_knows_needs_its_python(copy, mark):
    folder = copy("llama")
    plant(folder, mark)
    change(folder / "config.json", model_type="no_such", auto_map=AUTO_MAP)
    with pytest.raises(RemoteCodeNeeded, match="no_such"):
        load_model(str(folder), "float32")
    assert quiet(mark)


def test_a_model_of_pictures_is_not_served_without_its_processor(copy, mark):
    folder = copy("llava")
    plant(folder, mark)
    named = {"AutoImageProcessor": "image_processing_own.Own"}
    change(folder / "preprocessor_config.json", image_processor_type="Own", auto_map=named)
    with pytest.raises(RemoteCodeNeeded, match="image_processing_own"):
        load_model(str(folder), "float32")
    assert quiet(mark)


def test_nor_as_if_it_were_a_model_of_text(copy, mark, monkeypatch):
    """Where transformers knows no processor it gives the tokenizer."""
    folder = copy("llava")
    plant(folder, mark)
    change(folder / "config.json", auto_map={"AutoProcessor": "processing_own.Own"})
    real = load.load

    def tokenizer_only(*arguments, **options):
        model, processor = real(*arguments, **options)
        return model, processor.tokenizer

    monkeypatch.setattr(load, "load", tokenizer_only)
    monkeypatch.setattr(load, "load_processor", lambda *_, **__: object())
    with pytest.raises(RemoteCodeNeeded, match="image processor"):
        load_model(str(folder), "float32")


def test_a_config_keeps_an_empty_map(copy, mark, monkeypatch, tmp_path):
    """LLaVA-Bunny's config must have one."""
    folder = copy("llama")
    plant(folder, mark)
    change(folder / "config.json", auto_map=AUTO_MAP, model_file="modeling_own.py")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    config = json.loads((remote_code.data_only(folder) / "config.json").read_text())
    assert config["auto_map"] == {}
    assert "model_file" not in config


def test_damage_is_no_reason_to_run_anything(copy, mark):
    folder = copy("qwen3_vl")
    plant(folder, mark)
    change(folder / "config.json", auto_map=AUTO_MAP)
    (folder / "model.safetensors").write_bytes(b"\0" * 100)
    with pytest.raises(ModelNotLoaded) as caught:
        load_model(str(folder), "float32")
    assert caught.value.code == "model_not_loaded"
    assert "trust" not in caught.value.message


def test_the_view_is_gone_with_the_model(copy, mark, tmp_path, monkeypatch):
    views = tmp_path / "views"
    views.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(views))
    folder = copy("llama")
    plant(folder, mark)
    loaded = load_model(str(folder), "float32")
    [view] = views.iterdir()
    assert not list(view.rglob("*.py"))
    del loaded
    gc.collect()
    assert not list(views.iterdir())
    change(folder / "config.json", model_type="no_such")
    with pytest.raises(ModelNotLoaded):
        load_model(str(folder), "float32")
    assert not list(views.iterdir())


def breakout(mark: Path) -> str:
    """A template that leaves Jinja where no sandbox holds it."""
    return (
        "{{ cycler.__init__.__globals__.os.system('touch " + str(mark) + "') }}"
        "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    )


@pytest.mark.parametrize("name", tiny_models.FAMILIES)
def test_a_template_runs_nothing(name, copy, mark):
    folder = copy(name)
    change(folder / "tokenizer_config.json", chat_template=breakout(mark))
    loaded = load_model(str(folder), "float32")
    if name != "internvl_chat":  # has a template of ours
        with pytest.raises(TemplateFailed):
            render_prompt(loaded.processor, Job(id="a", prompt="Who?"))
    assert not mark.exists()


def unguarded_classes() -> list[Any]:
    """Processors of mlx-vlm whose source asks for Jinja itself."""
    models = Path(mlx_vlm.__file__).parent / "models"
    found = []
    for file in sorted(models.glob("*/*.py")):
        if "jinja2 import" in file.read_text():
            module = __import__(f"mlx_vlm.models.{file.parent.name}.{file.stem}", fromlist=["*"])
            found += [
                value
                for value in vars(module).values()
                if isinstance(value, type)
                and value.__module__ == module.__name__
                and "apply_chat_template" in vars(value)
            ]
    return found


def test_processors_that_render_without_a_sandbox_are_known():
    assert {kind.__name__ for kind in unguarded_classes()} == UNGUARDED


@pytest.mark.parametrize("kind", unguarded_classes(), ids=lambda kind: kind.__name__)
def test_their_templates_run_nothing_either(kind, load, mark):
    processor = kind.__new__(kind)
    processor.tokenizer = load("llama").loaded.tokenizer
    processor.chat_template = breakout(mark)
    with pytest.raises(Exception, match="unsafe"):
        render(processor, MESSAGES)
    assert not mark.exists()
    processor.chat_template = "{{ messages[0]['role'] }}:{% if add_generation_prompt %}!{% endif %}"
    assert render(processor, MESSAGES) == "user:!"
