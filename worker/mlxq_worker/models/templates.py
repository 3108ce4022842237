"""Chat templates: rendered in a sandbox, from messages as everybody writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

UNGUARDED: Final = frozenset(
    {
        "Ernie4_5_VLProcessor",
        "KimiVLProcessor",
        "LocateAnythingProcessor",
        "Molmo2Processor",
        "MolmoProcessor",
        "Phi3VProcessor",
    }
)
"""Processors of mlx-vlm that render a template without a sandbox: it could run any Python."""

_INTERNVL = (
    "{%- for message in messages %}{{ message['role'].capitalize() + ': ' }}"
    "{%- if message['content'] is string %}{{ message['content'] }}{%- else %}"
    "{%- for part in message['content'] if part['type'] == 'image' %}"
    "{{ '<image>\\n' }}{%- endfor %}"
    "{%- for part in message['content'] if part['type'] == 'text' %}"
    "{{ part['text'] }}{%- endfor %}"
    "{%- endif %}{{ '\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ 'Assistant:\\n' }}{%- endif %}"
)
"""The conversation that mlx-vlm's own template writes, which drops text given as ``text``."""


def mend_template(processor: Any) -> None:
    """Give ``processor`` a template that reads parts of type image and text, or plain strings."""
    if type(processor).__name__ == "InternVLChatProcessor":
        processor.chat_template = _INTERNVL


def render(processor: Any, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
    """Messages through the processor's chat template, or else its tokenizer's, open for an answer.

    Raises whatever the template raises.
    """
    tokenizer = getattr(processor, "tokenizer", processor)
    template = getattr(processor, "chat_template", None)
    if template and type(processor).__name__ in UNGUARDED:
        options["chat_template"] = template
    renderer = processor if template and "chat_template" not in options else tokenizer
    text: str = renderer.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=False, **options
    )
    return text
