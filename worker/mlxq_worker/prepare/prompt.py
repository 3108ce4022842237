"""Chat messages to the text that a model was trained on."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Final

from mlxq_schemas import AudioPart, ImagePart, Job, Message, Part, TextPart, VideoPart
from mlxq_schemas.errors import TemplateFailed, Unsupported
from mlxq_worker.models.templates import render

RESERVED: Final = frozenset(
    {
        *("chat_template", "conversation", "messages", "tools", "tokenize"),
        *("add_generation_prompt", "continue_final_message", "return_dict", "return_tensors"),
        *("return_assistant_tokens_mask", "padding", "truncation", "max_length"),
        *("tokenizer_kwargs", "processor_kwargs"),
    }
)
"""Names of ``chat_template_kwargs`` that would change not the prompt but how it is made, or that
nobody would see. A ``chat_template`` is a program: it could keep a thread, and with the lock all
jobs, for ever."""
_render_lock = threading.Lock()
"""Chat templates compile into a shared cache on first use; rendering takes microseconds."""


def render_prompt(processor: Any, job: Job) -> str:
    """The job's messages through the model's chat template, open for the assistant's turn.

    Raises :class:`TemplateFailed`, and :class:`Unsupported` for the :data:`RESERVED` arguments.
    """
    for name in sorted(RESERVED & job.chat_template_kwargs.keys()):
        raise Unsupported(
            f"job {job.id}: chat_template_kwargs.{name}: a job may not set this; leave it out"
        )
    try:
        return _render(processor, job, job.chat())
    except Exception as error:  # a template is a program: it may raise anything
        raise TemplateFailed(
            f"job {job.id}: the model's chat template refused the messages: {error}"
        ) from error


def stable_tokens(processor: Any, job: Job, text: str, count: int) -> int:
    """How many of the ``count`` tokens of the prompt ``text`` stay the same in the next turn.

    Templates end a prompt with words that a longer chat does not have there (an open turn, a
    think mark) or rewrite earlier turns. Found by rendering one more turn. 0: not known.
    """
    more = [
        *job.chat(),
        Message(role="assistant", content="."),
        Message(role="user", content="."),
    ]
    try:
        longer = _render(processor, job, more)
    except Exception:  # noqa: BLE001 - a template that takes no such turn
        return 0
    pairs = enumerate(zip(text, longer, strict=False))
    rest = text[next((n for n, (a, b) in pairs if a != b), len(text)) :]
    tokenizer = getattr(processor, "tokenizer", processor)
    return max(0, count - len(tokenizer(rest, add_special_tokens=False)["input_ids"]) - 1)


def _render(processor: Any, job: Job, chat: Sequence[Message]) -> str:
    messages = [_as_template(message) for message in chat]
    with _render_lock:
        return render(processor, messages, **job.chat_template_kwargs)


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
