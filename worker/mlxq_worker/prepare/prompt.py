"""Chat messages to the text that a model was trained on."""

from __future__ import annotations

import threading
from typing import Any

from mlxq_schemas import AudioPart, ImagePart, Job, Message, Part, TextPart, VideoPart
from mlxq_schemas.errors import TemplateFailed

_render_lock = threading.Lock()
"""Chat templates compile into a shared cache on first use; rendering takes microseconds."""


def render_prompt(processor: Any, job: Job) -> str:
    """The job's messages through the model's chat template, open for the assistant's turn.

    Raises :class:`TemplateFailed`.
    """
    template = processor if getattr(processor, "chat_template", None) else processor.tokenizer
    messages = [_as_template(message) for message in job.chat()]
    try:
        with _render_lock:
            text: str = template.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=False, **job.chat_template_kwargs
            )
    except Exception as error:  # a template is a program: it may raise anything
        raise TemplateFailed(
            f"job {job.id}: the model's chat template refused the messages: {error}"
        ) from error
    return text


def _as_template(message: Message) -> dict[str, Any]:
    parts = message.parts()
    texts = [part.text for part in parts if isinstance(part, TextPart)]
    if len(texts) == len(parts):
        return {"role": message.role, "content": "".join(texts)}
    return {"role": message.role, "content": [_as_template_part(part) for part in parts]}


def _as_template_part(part: Part) -> dict[str, str]:
    match part:
        case TextPart():
            return {"type": "text", "text": part.text}
        case ImagePart():
            return {"type": "image"}
        case VideoPart():
            return {"type": "video"}
        case AudioPart():
            return {"type": "audio"}
