"""From a job to a request for the engine. Runs in prepare threads and starts no MLX work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mlxq_schemas import Job
from mlxq_schemas.errors import JobError, PromptTooLong
from mlxq_worker.backend import BlobReader
from mlxq_worker.engine.request import Request
from mlxq_worker.models.inputs import build_inputs, check_ids
from mlxq_worker.models.prepared import Prepared
from mlxq_worker.prepare.media import FetchedImage, MediaPolicy, fetch_image
from mlxq_worker.prepare.memo import Memo
from mlxq_worker.prepare.prompt import render_prompt, stable_tokens

_MOST_CHARS = 8
"""Characters per token above which a prompt that overfills the context is not read to its end."""
_PRIORITY = {"high": 1, "normal": 0, "low": -1}


class Preparer:
    """Loads media, renders the template, tokenises.

    ``processor`` is the model's own; ``context`` the most tokens of prompt and answer together;
    ``memo_bytes`` the most memory for inputs that may come again (0: off); ``vocabulary`` how many
    token ids the model has (0: not known).
    """

    def __init__(
        self,
        processor: Any,
        policy: MediaPolicy,
        context: int,
        memo_bytes: int = 0,
        vocabulary: int = 0,
    ) -> None:
        self._processor = processor
        self._policy = policy
        self._context = context
        self._memo = Memo(processor, memo_bytes)
        self._vocabulary = vocabulary

    def __call__(self, job: Job, read_blob: BlobReader) -> Request:
        """The request that answers ``job``; raises a :class:`JobError` that says why not."""
        check_ids(f"job {job.id}: logit_bias", job.sampling.logit_bias, self._vocabulary)
        images = [fetch_image(ref, self._policy, read_blob) for _, ref in job.media()]
        text = render_prompt(self._processor, job)
        self._check_length(job, text)
        try:
            prepared = self._inputs(text, images)
        except JobError as error:
            raise type(error)(f"job {job.id}: {error.message}") from error
        if len(prepared.ids) >= self._context:
            raise PromptTooLong(
                f"job {job.id}: the prompt has {len(prepared.ids):,} tokens; the model takes "
                f"fewer than {self._context:,}: shorten the text or send fewer or smaller images"
            )
        check_ids(f"job {job.id}: the prompt", prepared.ids, self._vocabulary)
        stable = stable_tokens(self._processor, job, text, len(prepared.ids))
        return Request(
            job.id,
            prepared=replace(prepared, stable=stable),
            sampling=job.sampling,
            priority=_PRIORITY[job.priority],
            logprobs=job.logprobs,
        )

    def _inputs(self, text: str, images: Sequence[FetchedImage]) -> Prepared:
        media = tuple(image.sha256 for image in images)
        known = self._memo.find(text, media) if images else None
        if known is not None:
            return known
        pictures = [image.decode(self._policy) for image in images]
        prepared = build_inputs(self._processor, text, pictures, media)
        self._memo.keep(text, prepared)
        return prepared

    def _check_length(self, job: Job, text: str) -> None:
        """Refuse by its beginning a text that is far too long.

        Tens of megabytes would take minutes and gigabytes to tokenise.
        """
        begin = text[: _MOST_CHARS * self._context]
        if len(begin) == len(text):
            return
        tokenizer = getattr(self._processor, "tokenizer", self._processor)
        if len(tokenizer(begin)["input_ids"]) > self._context:
            raise PromptTooLong(
                f"job {job.id}: the prompt has {len(text):,} characters, of which the first "
                f"{len(begin):,} fill the model's {self._context:,} tokens: shorten the text"
            )
