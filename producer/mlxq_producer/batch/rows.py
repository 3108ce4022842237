"""The rows of output and error files, in OpenAI's form."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from mlxq_producer.batch.body import job_id
from mlxq_producer.batch.lines import BadLine, Endpoint
from mlxq_schemas import Event, Result, Retrying, Token, TokenLogprob
from mlxq_schemas.errors import UnknownModel

Row = dict[str, Any]

CANCELLED = ("batch_cancelled", "the batch was cancelled before this request ended")
EXPIRED = ("batch_expired", "the completion window ended before this request did")
GONE = ("expired", "the job and its result are gone from the server: send the line again")


@dataclass(frozen=True)
class Sent:
    """A line whose job is in the queue."""

    number: int
    custom_id: str
    url: Endpoint
    logprobs: bool
    round: int = 0

    def job(self, batch: str) -> str:
        """Id of its job."""
        return job_id(batch, self.custom_id, self.round)


def row_id(batch: str, number: int) -> str:
    """Id of the row of a line: from it a run that goes on knows which lines are done."""
    return f"{batch.replace('batch_', 'batch_req_', 1)}_{number}"


def error_row(batch: str, line: BadLine) -> Row:
    """The row of a line that has no response."""
    return {
        "id": row_id(batch, line.number),
        "custom_id": line.custom_id,
        "response": None,
        "error": {"code": line.code, "message": line.message},
    }


def bad(sent: Sent, end: tuple[str, str]) -> BadLine:
    """The error of a line that was sent; ``end`` is code and message."""
    return BadLine(sent.number, sent.custom_id, *end)


def failure(result: Result | None) -> tuple[str, str]:
    """Code and message for a job that did not finish; None: nothing is left of it."""
    if result is None:
        return GONE
    if result.type == "failed":
        message = result.message or "the job failed"
        if result.code == UnknownModel.code:
            message += "; `--model any` takes what the workers serve"
        return result.code or "internal", message
    return CANCELLED if result.type == "cancelled" else EXPIRED


def response_row(batch: str, sent: Sent, result: Result, logprobs: list[TokenLogprob]) -> Row:
    """The row of a finished job."""
    chat = sent.url == "/v1/chat/completions"
    body: Row = {
        "id": f"{'chatcmpl' if chat else 'cmpl'}-{result.job}",
        "object": "chat.completion" if chat else "text_completion",
        "created": int(result.t),
        "model": result.provenance.model if result.provenance else "",
        "choices": [(_chat_choice if chat else _choice)(sent, result, logprobs)],
        "usage": _usage(result),
    }
    return {
        "id": row_id(batch, sent.number),
        "custom_id": sent.custom_id,
        "response": {"status_code": 200, "request_id": result.job, "body": body},
        "error": None,
    }


def logprobs_of(events: Iterable[Event]) -> list[TokenLogprob]:
    """The log probabilities of a job's text, in order."""
    found: list[TokenLogprob] = []
    for event in events:
        if isinstance(event, Retrying) and event.restart:
            found = []
        elif isinstance(event, Token):
            found += event.logprobs or []
    return found


def _chat_choice(sent: Sent, result: Result, logprobs: list[TokenLogprob]) -> Row:
    content = [{**_token(p.id, p.logprob), "top_logprobs": _top(p)} for p in logprobs]
    return {
        "index": 0,
        "message": {"role": "assistant", "content": result.text, "refusal": None},
        "logprobs": {"content": content, "refusal": None} if sent.logprobs else None,
        "finish_reason": result.reason,
    }


def _choice(sent: Sent, result: Result, logprobs: list[TokenLogprob]) -> Row:
    listed = {
        "tokens": [_name(p.id) for p in logprobs],
        "token_logprobs": [_finite(p.logprob) for p in logprobs],
        "top_logprobs": [
            {_name(i): _finite(value) for i, value in p.top.items()} for p in logprobs
        ],
    }
    return {
        "index": 0,
        "text": result.text,
        "logprobs": listed if sent.logprobs else None,
        "finish_reason": result.reason,
    }


def _top(one: TokenLogprob) -> list[Row]:
    return [_token(token, value) for token, value in one.top.items()]


def _token(token: int, logprob: float) -> Row:
    return {"token": _name(token), "bytes": None, "logprob": _finite(logprob)}


def _finite(logprob: float) -> float:
    """OpenAI's number for a token that the model all but rules out."""
    return logprob if math.isfinite(logprob) else -9999.0


def _name(token: int) -> str:
    # The queue carries token ids; the texts of single tokens are the tokenizer's, at the worker.
    return f"token_id:{token}"


def _usage(result: Result) -> Row:
    usage = result.usage
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
