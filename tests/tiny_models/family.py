"""What a tiny model is built from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

Ids = Mapping[str, int]
"""Token ids by token, those of :attr:`Family.added` included."""


@dataclass(frozen=True)
class Family:
    """A family's config with small numbers in it, and the files that its processor reads.

    ``config``: config.json, given the token ids. ``added``: special tokens that the bundled
    tokenizer lacks; ``named``: those that the tokenizer has under a name. ``template``: the chat
    template. ``bos``: the start token, which the tokenizer adds by itself. ``gain`` and
    ``embedding``: size of random weights, such that greedy text varies.
    """

    config: Callable[[Ids], dict[str, Any]]
    template: str
    added: tuple[str, ...] = ()
    named: dict[str, str] = field(default_factory=dict)
    bos: str | None = None
    preprocessor: dict[str, Any] | None = None
    processor: dict[str, Any] | None = None
    gain: float = 1.5
    embedding: float = 1.0


def chat(image: str, start: str = "") -> str:
    """A chat template in which ``image`` stands for a picture."""
    return (
        start + "{%- for message in messages %}"
        "{{- '<|im_start|>' + message['role'] + '\\n' }}"
        "{%- if message['content'] is string %}{{- message['content'] }}{%- else %}"
        "{%- for part in message['content'] %}"
        f"{{%- if part['type'] == 'image' %}}{{{{- '{image}' }}}}"
        "{%- else %}{{- part['text'] }}{%- endif %}{%- endfor %}{%- endif %}"
        "{{- '<|im_end|>\\n' }}{%- endfor %}"
        "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
    )


def image_processor(kind: str, **settings: Any) -> dict[str, Any]:
    """A preprocessor_config.json."""
    return {
        "image_processor_type": kind,
        "do_resize": True,
        "do_rescale": True,
        "do_normalize": True,
        "do_convert_rgb": True,
        "rescale_factor": 1 / 255,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        **settings,
    }


def wide(family: Family) -> Family:
    """The family with half as many attention heads, each twice as large."""

    def config(ids: Ids) -> dict[str, Any]:
        whole = family.config(ids)
        text = next((whole[key] for key in ("text_config", "llm_config") if key in whole), whole)
        text |= {"num_attention_heads": 2, "num_key_value_heads": 1}
        if "head_dim" in text:
            text["head_dim"] = 32
        rope = text.get("rope_scaling") or text.get("rope_parameters") or {}
        if "mrope_section" in rope:
            rope["mrope_section"] = [2 * n for n in rope["mrope_section"]]
        return whole

    return replace(family, config=config)
