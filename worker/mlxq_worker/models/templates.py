"""Chat templates that do not read messages as everybody writes them."""

from __future__ import annotations

from typing import Any

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
