"""From the body of an OpenAI request to the fields of a job.

Nothing is ignored: a field is honoured, or has a value that changes nothing, or is refused.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit
from urllib.request import url2pathname

from mlxq_producer.batch.lines import Request
from mlxq_schemas import Priority
from mlxq_schemas.errors import InvalidJob, MediaForbidden, Unsupported
from mlxq_schemas.plain import whole
from mlxq_schemas.support import refusal, told

ANY_MODEL: Final = "any"

# What OpenAI's API takes where a body is silent. A chat answer has no limit there; here a runaway
# one would hold a row until the context is full.
TEMPERATURE: Final = 1.0
CHAT_MAX_TOKENS: Final = 4096
COMPLETION_MAX_TOKENS: Final = 16

_SAMPLING: Final = (
    *("temperature", "top_p", "top_k", "min_p", "seed", "stop", "logit_bias", "ignore_eos"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty"),
)
_JOB: Final = ("response_format", "tools", "chat_template_kwargs")
"""Left to the job itself to take or to refuse."""
_WITHOUT_EFFECT: Final[dict[str, tuple[Any, ...]]] = {
    "n": (1,),
    "stream": (False,),
    "store": (False, True),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "echo": (False,),
    "best_of": (1,),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "service_tier": ("auto", "default", "flex", "priority"),
    "suffix": ("",),
}
"""Values that ask for what happens anyway. With tools, which are refused, some would not."""
_KEPT: Final = ("metadata", "user", "safety_identifier", "prompt_cache_key")
"""Notes about a request, which go into the metadata of its job."""
_RANGES: Final[dict[str, tuple[float, float]]] = {
    "temperature": (0, 2),
    "top_p": (0, 1),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "top_logprobs": (0, 20),
    "logprobs": (0, 5),
}
"""What OpenAI's API takes; the queue itself takes more. ``logprobs`` is a number in completions."""
KNOWN: Final = frozenset(
    {
        *(*_SAMPLING, *_JOB, *_WITHOUT_EFFECT, *_KEPT, *_RANGES),
        *("messages", "prompt", "model", "logprobs", "max_tokens", "max_completion_tokens"),
    }
)
"""Names of fields that a body may have, though not each with every value."""
_REMOTE: Final = re.compile(r"(?!file:)[A-Za-z][A-Za-z0-9+.-]+:", re.IGNORECASE)


@dataclass(frozen=True)
class Plan:
    """What the jobs of one batch have in common.

    ``model`` stands for the models that the lines name: None keeps those, ``any`` takes what the
    workers serve. Local images must lie under ``media_root``. ``deadline`` is in unix seconds.
    ``round`` counts how often lines that had jobs were given up and begun anew, under other ids.
    """

    batch: str
    deadline: float
    media_root: Path
    model: str | None = None
    priority: Priority = "normal"
    round: int = 0


def job_id(batch: str, custom_id: str, number: int = 0) -> str:
    """The job of a line: the same whenever the line is sent again in the same round."""
    name = custom_id if not number else f"{number}:{custom_id}"
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{batch}.{digest[:32]}"


def brings_files(fields: Mapping[str, Any]) -> bool:
    """True if the bytes of local files travel with a job of these fields."""
    messages = fields.get("messages") or ()
    contents = (m["content"] for m in messages if isinstance(m.get("content"), list))
    parts = (part for content in contents for part in content if isinstance(part, dict))
    images = (cast("dict[str, Any]", part).get("image_url") for part in parts)
    urls = (image["url"] for image in images if isinstance(image, dict))
    return any(not _REMOTE.match(url) for url in urls)


def job_fields(request: Request, plan: Plan) -> dict[str, Any]:
    """The fields of the line's job; raises a :class:`JobError` that says what cannot be done."""
    body = {name: value for name, value in request.body.items() if value is not None}
    for name, values in _WITHOUT_EFFECT.items():
        if any(body.get(name) == one and type(body[name]) is type(one) for one in values):
            del body[name]
    if "n" in body:
        raise Unsupported("n is not 1: give each answer a line, with a custom_id and seed")
    _check_ranges(body)
    chat = request.url == "/v1/chat/completions"
    fields = {name: body.pop(name) for name in _JOB if name in body}
    fields |= _chat(body, plan.media_root) if chat else _completion(body)
    sampling = {name: body.pop(name) for name in _SAMPLING if name in body}
    sampling["max_tokens"] = _max_tokens(body, CHAT_MAX_TOKENS if chat else COMPLETION_MAX_TOKENS)
    sampling.setdefault("temperature", TEMPERATURE)
    fields |= {
        "sampling": sampling,
        "model": _model(body, plan),
        "metadata": _metadata(body, request, plan),
    }
    if body:
        raise Unsupported(told(refusal(name, KNOWN) for name in sorted(body)))
    return {
        **fields,
        "id": job_id(plan.batch, request.custom_id, plan.round),
        "deadline": plan.deadline,
        "priority": plan.priority,
        # Rows are written from results; only log probabilities stand in events alone.
        "stream": fields.get("logprobs") is not None,
    }


def _check_ranges(body: Mapping[str, Any]) -> None:
    for name, (least, most) in _RANGES.items():
        value = body.get(name)
        if isinstance(value, int | float) and not least <= value <= most:
            raise InvalidJob(f"{name} is {value!r}: give {least} to {most}")


def _chat(body: dict[str, Any], media_root: Path) -> dict[str, Any]:
    messages = body.pop("messages", None)
    if not isinstance(messages, list) or not messages:
        raise InvalidJob("messages is not a list of at least one message")
    places = enumerate(cast("list[Any]", messages))
    fields: dict[str, Any] = {
        "messages": [_message(m, f"messages[{place}]", media_root) for place, m in places]
    }
    wanted, top = body.pop("logprobs", False), body.pop("top_logprobs", None)
    if not isinstance(wanted, bool):
        raise InvalidJob("logprobs is neither true nor false")
    if top is not None and not wanted:
        raise InvalidJob("top_logprobs needs logprobs: true")
    return {**fields, "logprobs": top or 0} if wanted else fields


def _completion(body: dict[str, Any]) -> dict[str, Any]:
    prompt = body.pop("prompt", None)
    if isinstance(prompt, list) and len(cast("list[Any]", prompt)) == 1:
        prompt = prompt[0]
    if not isinstance(prompt, str):
        raise InvalidJob("prompt is not one text: give each prompt a line")
    return {"prompt": prompt, "logprobs": body.pop("logprobs", None)}


def _message(message: Any, path: str, media_root: Path) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise InvalidJob(f"{path}: a message is not a JSON object")
    fields = _present(message, ("role", "content"), path)
    content = fields.get("content")
    if not isinstance(content, list):
        return fields
    parts = enumerate(cast("list[Any]", content))
    return {
        **fields,
        "content": [_part(part, f"{path}.content[{place}]", media_root) for place, part in parts],
    }


def _part(part: Any, path: str, media_root: Path) -> Any:
    if not isinstance(part, dict):
        return part  # for the job to refuse
    kind = cast("dict[str, Any]", part).get("type")
    if kind in ("video_url", "input_audio", "file", "refusal"):
        raise Unsupported(f"not supported: {path}.{kind}; leave these out")
    if kind not in ("text", "image_url"):
        return part
    fields = _present(part, ("type", kind), path)
    if kind == "text":
        return fields
    image = fields.get("image_url")
    image = {"url": image} if isinstance(image, str) else image
    if not isinstance(image, dict):
        raise InvalidJob(f"{path}.image_url is neither a JSON object with a url nor a text")
    image = _present(image, ("url", "detail"), f"{path}.image_url")
    if image.pop("detail", "auto") != "auto":
        raise Unsupported(f"not supported: {path}.image_url.detail is not auto; leave it out")
    url = image.get("url")
    if not isinstance(url, str) or not url:
        raise InvalidJob(f"{path}.image_url.url is not a text")
    return {**fields, "image_url": {"url": _located(url, media_root)}}


def _located(url: str, media_root: Path) -> str:
    """A URL as it is; for a local file its path, which must lie under ``media_root``."""
    if _REMOTE.match(url):
        return url
    name = url2pathname(urlsplit(url).path) if url.lower().startswith("file:") else url
    try:
        root = media_root.resolve()
        path = (root / name).resolve()
    except (OSError, ValueError, RuntimeError) as error:
        raise InvalidJob(f"{url[:200]!r} is no path: {error}") from error
    if not path.is_relative_to(root):
        raise MediaForbidden(f"{url[:200]} is not under {root}: give its folder with --media-root")
    return str(path)


def _max_tokens(body: dict[str, Any], default: int) -> Any:
    given = [body.pop(n) for n in ("max_completion_tokens", "max_tokens") if n in body]
    if len(given) == 2 and given[0] != given[1]:
        raise InvalidJob("max_tokens and max_completion_tokens differ; give one of them")
    return given[0] if given else default


def _model(body: dict[str, Any], plan: Plan) -> Any:
    named = body.pop("model", None)
    model = named if plan.model is None else plan.model
    return None if model == ANY_MODEL else model


def _metadata(body: dict[str, Any], request: Request, plan: Plan) -> dict[str, Any]:
    given = {name: body.pop(name) for name in _KEPT if name in body}
    return {"batch": plan.batch, "custom_id": whole(request.custom_id), **given}


def _present(value: Any, known: tuple[str, ...], path: str) -> dict[str, Any]:
    """The fields that hold something; raises :class:`Unsupported` if one is unknown."""
    fields = {n: v for n, v in cast("dict[str, Any]", value).items() if v is not None}
    if unknown := sorted(fields.keys() - set(known)):
        raise Unsupported(told(refusal(f"{path}.{name}", known) for name in unknown))
    return fields
