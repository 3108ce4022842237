"""Known families are served at once, unknown ones after the self-check, or not at all."""

from __future__ import annotations

import pytest

import tiny_models
from mlxq_schemas.errors import ModelNotLoaded
from mlxq_worker.models import registry
from mlxq_worker.models.generic import GenericAdapter

RIGHT_BY_ITSELF = ["gemma3", "gemma4", "idefics3", "internvl_chat", "llama", "llava", "pixtral"]


@pytest.fixture
def unknown(monkeypatch, load):
    """A family's tiny model, forgotten by the registry."""

    def forget(name, dtype="float32"):
        monkeypatch.delitem(registry._ADAPTERS, name)
        return load(name, dtype).loaded

    return forget


def test_a_known_family_needs_no_check(subject):
    adapter = registry.adapter_for(subject.loaded.model)
    assert type(adapter) is registry._ADAPTERS[subject.loaded.model.config.model_type]


@pytest.mark.parametrize("name", RIGHT_BY_ITSELF)
def test_an_unknown_family_that_passes_the_check_is_served(unknown, name):
    loaded = unknown(name)
    assert type(registry.adapter_for(loaded.model, loaded.processor)) is GenericAdapter


@pytest.mark.parametrize("name", tiny_models.KIN)
def test_families_near_to_known_ones_pass_the_check(load, name):
    """Experts, sliding windows, convolutions."""
    subject = load(name)
    adapter = registry.adapter_for(subject.loaded.model, subject.loaded.processor)
    assert type(adapter) is registry._KIN.get(name, GenericAdapter)


@pytest.mark.parametrize("name", ["llama", "llava", "gemma4"])
def test_half_precision_does_not_fail_the_check(unknown, name):
    loaded = unknown(name, "bfloat16")
    assert type(registry.adapter_for(loaded.model, loaded.processor)) is GenericAdapter


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen3_vl", "qwen3_5"])
def test_a_family_that_keeps_a_rows_positions_on_its_module_is_refused(unknown, name):
    loaded = unknown(name)
    with pytest.raises(ModelNotLoaded, match=f"'{name}' is not known .* fails the self-check"):
        registry.adapter_for(loaded.model, loaded.processor)


def test_the_right_adapter_passes_the_check(unknown, monkeypatch):
    adapter = registry._ADAPTERS["qwen3_5"]
    loaded = unknown("qwen3_5")
    monkeypatch.setitem(registry._KIN, "qwen3_5", adapter)
    assert type(registry.adapter_for(loaded.model, loaded.processor)) is adapter


def test_slices_that_change_the_answer_are_found(unknown, monkeypatch):
    """Gemma 4 sees images in both directions: it must not be sliced there."""
    monkeypatch.setattr(GenericAdapter, "_may_split", lambda *_: True)
    loaded = unknown("gemma4")
    with pytest.raises(ModelNotLoaded, match="prefill in slices: a prompt with a picture"):
        registry.adapter_for(loaded.model, loaded.processor)


def test_a_model_that_raises_in_the_check_is_refused(unknown, monkeypatch):
    loaded = unknown("llama")

    def broken(*_):
        raise RuntimeError("no such layer")

    monkeypatch.setattr(GenericAdapter, "decode", broken)
    with pytest.raises(ModelNotLoaded, match="it raised RuntimeError: no such layer"):
        registry.adapter_for(loaded.model, loaded.processor)


def test_an_unknown_family_without_its_processor_is_refused(unknown):
    with pytest.raises(ModelNotLoaded, match="cannot be checked without its processor"):
        registry.adapter_for(unknown("llama").model)
