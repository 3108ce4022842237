"""The continuous batch generator: requests join and leave a running batch at any step."""

from __future__ import annotations

import secrets
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import mlx.core as mx

from mlxq_schemas import FinishReason
from mlxq_schemas.errors import GenerationFailed, InvalidJob, MlxqError
from mlxq_worker.cache.caches import Caches
from mlxq_worker.engine.batch import Step
from mlxq_worker.engine.cohorts import Cohorts, most_tokens
from mlxq_worker.engine.prefill import PAGE, Prefill, PrefillPlan
from mlxq_worker.engine.recall import Recall
from mlxq_worker.engine.request import Request, Response
from mlxq_worker.engine.row import Row
from mlxq_worker.engine.text import StopMatcher, make_detokenizers
from mlxq_worker.engine.waiting import WaitingLine
from mlxq_worker.models.inputs import build_inputs
from mlxq_worker.models.prepared import Prepared
from mlxq_worker.models.quantised import Quantisation, check
from mlxq_worker.models.registry import adapter_for

if TYPE_CHECKING:
    from mlxq_worker.cache.disk import DiskTier

PATIENCE = 0.01
"""Seconds that a step waits for the SSD when there is nothing else to do."""

GROWTH = 256
"""Tokens of growth that admission sets aside for each row; preemption covers the rest."""


class BatchGenerator:
    """Generates for many requests at once; each row's text is what it would be alone.

    Usage::

        generator = BatchGenerator(model, processor, max_rows=16)
        generator.insert([Request("a", prompt_ids=ids), ...])
        while generator.has_work():
            for response in generator.next():
                ...

    All methods but :meth:`abort` belong to one thread, the one that loaded the model.

    ``max_rows``: most rows in prefill and decode together. ``prefill_step``: most prompt tokens
    fed in one :meth:`next` while nothing decodes; ``mixed_step``: the same while rows decode, so
    that their tokens do not stall. ``max_cache_bytes``: most bytes of KV cache (0: no limit);
    rows are admitted by it, and the youngest are preempted when growth exceeds it. ``eos``: ids
    that end a row (default: those of the model's config and tokenizer). ``context``: most tokens
    of prompt and answer together. ``quantisation`` of decoding rows' keys and
    values gives up exactness. ``prefix_cache_bytes`` and ``feature_cache_bytes``: most
    bytes of remembered prefixes and pictures (0: off); ``disk`` keeps them over restarts, under
    ``identity``, which must name weights and processor settings.
    """

    def __init__(
        self,
        model: Any,
        processor: Any,
        *,
        max_rows: int = 16,
        prefill_step: int = 1024,
        mixed_step: int = 256,
        max_cache_bytes: int = 0,
        eos: frozenset[int] | None = None,
        context: int = 2**31,
        prefix_cache_bytes: int = 0,
        feature_cache_bytes: int = 0,
        quantisation: Quantisation | None = None,
        identity: str = "",
        disk: DiskTier | None = None,
    ) -> None:
        if max_rows < 1 or prefill_step < 1 or mixed_step < 1:
            raise ValueError("max_rows, prefill_step and mixed_step must be at least 1")
        self._adapter = adapter_for(model, processor)
        self._processor = processor
        tokenizer = getattr(processor, "tokenizer", processor)
        self._new_detokenizer = make_detokenizers(tokenizer)
        self._eos = _default_eos(model, tokenizer) if eos is None else eos
        self._context = context
        self._max_rows = max_rows
        self._prefill_step = prefill_step
        self._mixed_step = min(mixed_step, prefill_step)
        self._max_cache_bytes = max_cache_bytes
        self._waiting = WaitingLine()
        self._prefilling: list[Row] = []
        caches = Caches(
            self._adapter,
            prefix_bytes=prefix_cache_bytes,
            feature_bytes=feature_cache_bytes,
            identity=identity,
            disk=disk,
        )
        self._recall = Recall(caches, self._adapter.media_tokens)
        self._prefill = Prefill(self._adapter, self._recall)
        if quantisation is not None:
            check(self._adapter, quantisation)
        self._decoding = Cohorts(self._adapter, quantisation)
        self._aborts: deque[str] = deque()
        self._last_uid = 0
        self._counts: Counter[str] = Counter()

    def insert(self, requests: Sequence[Request]) -> list[int]:
        """Queue requests and return their uids. Cheap: no MLX work."""
        rows = [self._new_row(request) for request in requests]
        for row in rows:
            self._waiting.add(row)
        return [row.uid for row in rows]

    def next(self) -> list[Response]:
        """One step: at most one prefill slice and one decode step. [] when idle."""
        if not self.has_work():
            self._aborts.clear()
            return []
        self._counts["steps"] += 1
        responses = self._end_aborted()
        self._preempt()
        responses += self._admit()
        responses += self._prefill_slice()
        return responses + self._decode()

    def remove(self, uids: Sequence[int]) -> None:
        """Drop rows at once and without a response; unknown uids are ignored."""
        leaving = set(uids)
        self._drop(lambda row: row.uid in leaving)

    def abort(self, request_id: str) -> None:
        """End a request at the next step, wherever it is; any thread may call this.

        An id that is not here by then is forgotten: a later request of that name lives.
        """
        self._aborts.append(request_id)

    def has_work(self) -> bool:
        """True while a request is queued, in prefill or decoding."""
        return bool(self._waiting or self._prefilling or len(self._decoding))

    def stats(self) -> dict[str, Any]:
        """Counters since the start, and what is in flight now."""
        counted = ("steps", "prompt_tokens", "repeated_tokens", "generated_tokens")
        counted += ("preempted", "restarted")
        return {
            "queued": len(self._waiting),
            "prefilling": len(self._prefilling),
            "decoding": len(self._decoding),
            "batches": self._decoding.sizes,
            "max_rows": self._max_rows,
            "cache_bytes": self._cache_bytes(),
            "peak_bytes": mx.get_peak_memory(),
            "images": self._prefill.images,
            "vision_calls": self._prefill.vision_calls,
            "vision_seconds": self._prefill.vision_seconds,
            **{name: self._counts[name] for name in counted},
            **self._recall.stats(),
        }

    def prefill_progress(self, request_id: str) -> tuple[int, int] | None:
        """(tokens fed, tokens in all) of a request in prefill; None if it is not there."""
        for row in self._prefilling:
            if row.request_id == request_id:
                return row.fed, row.length
        return None

    def close(self) -> list[Response]:
        """End every row; returns their last responses, with ``finish_reason`` "cancelled"."""
        ended = [_ended(row, "cancelled") for row in self._drop(lambda _: True)]
        self._recall.close()
        return ended

    def _new_row(self, request: Request) -> Row:
        self._last_uid += 1
        sampling = request.sampling
        row = Row(
            uid=self._last_uid,
            request=request,
            detokenizer=self._new_detokenizer(),
            stops=StopMatcher([*sampling.stop, *request.stop]),
            eos=self._eos,
            max_tokens=sampling.max_tokens,
            seed=secrets.randbits(63) if sampling.seed is None else sampling.seed,
            prepared=request.prepared,
            came=self._counts["steps"],
        )
        row.recall_prior()
        return row

    def _end_aborted(self) -> list[Response]:
        wanted: set[str] = set()
        while self._aborts:
            wanted.add(self._aborts.popleft())
        if not wanted:
            return []
        return [_ended(row, "cancelled") for row in self._drop(lambda r: r.request_id in wanted)]

    def _drop(self, chosen: Callable[[Row], bool]) -> list[Row]:
        """Take rows out of wherever they are."""
        everywhere = [*self._waiting, *self._prefilling, *self._decoding]
        dropped = [row for row in everywhere if chosen(row)]
        self._waiting.drop(chosen)
        self._prefilling = [row for row in self._prefilling if not chosen(row)]
        self._decoding.remove(dropped)
        return dropped

    def _cache_bytes(self) -> int:
        return self._decoding.nbytes + sum(row.nbytes for row in self._prefilling)

    def _next_bytes(self) -> int:
        """Bytes of the rows' caches after the next step."""
        return self._cache_bytes() + self._decoding.growth

    def _preempt(self) -> None:
        """While the rows are over the limit: caches shrink, then the youngest rows go back."""
        if not self._max_cache_bytes:
            return
        self._recall.make_room(self._next_bytes() + self._recall.nbytes - self._max_cache_bytes)
        while len(self._decoding) > 1:
            if self._next_bytes() <= self._max_cache_bytes:
                return
            youngest = max(self._decoding, key=lambda row: row.uid)
            self._decoding.remove([youngest])
            youngest.restart()
            self._waiting.add(youngest)
            self._counts["preempted"] += 1

    def _fits(self, row: Row) -> bool:
        running = len(self._prefilling) + len(self._decoding)
        if running == 0:
            return True
        if running >= self._max_rows:
            return False
        if not self._max_cache_bytes:
            return True
        tokens = [_promised(row) for row in (*self._decoding, *self._prefilling, row)]
        need = int(most_tokens(tokens) * self._prefill.bytes_per_token)
        if need > self._max_cache_bytes:
            return False
        self._recall.make_room(need + self._recall.nbytes - self._max_cache_bytes)
        return True

    def _admit(self) -> list[Response]:
        """Move queued rows to prefill while there is room; those with nothing to do end here."""
        responses: list[Response] = []
        while self._waiting:
            row = self._waiting.peek()
            try:
                row.prepared = row.prepared or self._prepare(row.request)
            except Exception as error:
                responses.append(_failed(self._waiting.pop(), error))
                continue
            row.max_tokens = min(row.max_tokens, self._context - len(row.prompt))
            if row.finish_reason or len(row.tokens) >= row.max_tokens:
                self._waiting.pop()
                responses.append(_ended(row, row.finish_reason or "length"))
            elif self._fits(row):
                self._prefilling.append(self._waiting.pop())
            else:
                break
        return responses

    def _prepare(self, request: Request) -> Prepared:
        if request.prompt_ids is not None:
            prepared = Prepared(list(request.prompt_ids))
        elif request.prompt is not None:
            prepared = build_inputs(self._processor, request.prompt, request.images)
        else:
            raise InvalidJob(f"{request.request_id}: give prompt, prompt_ids or prepared")
        if not prepared.ids:
            raise InvalidJob(f"{request.request_id}: the prompt has no tokens")
        return prepared

    def _prefill_slice(self) -> list[Response]:
        """Feed prompt tokens up to the budget; rows that are full join the decoding ones."""
        budget = self._mixed_step if len(self._decoding) else self._prefill_step
        rows = [row for row in self._prefilling if self._recall.ready(row)]
        if self._prefilling and not rows and not len(self._decoding):
            self._recall.wait(self._prefilling[0], PATIENCE)
        plan = PrefillPlan(rows, budget)
        self._prefill.encode(plan.beginning())
        responses: list[Response] = []
        ready: list[Row] = []
        for row, share in plan:
            try:
                fed = self._prefill.advance(row, share)
            except Exception as error:
                responses.append(_failed(row, error))
                self._prefilling.remove(row)
                continue
            plan.spent(fed)
            self._count_fed(row, fed)
            if Prefill.done(row):
                self._prefilling.remove(row)
                row.begin_decode()
                ready.append(row)
        self._decoding.join(ready)
        return responses

    def _count_fed(self, row: Row, fed: int) -> None:
        """Tokens of the prompt, and apart from these what was generated before and is fed again."""
        of_prompt = row.fed <= len(row.prompt)
        # The last token of a prompt is fed by the row's first decode step.
        last = Prefill.done(row) and not row.tokens
        self._counts["prompt_tokens"] += (fed if of_prompt else 0) + last
        self._counts["repeated_tokens"] += 0 if of_prompt else fed

    def _decode(self) -> list[Response]:
        steps, again = self._decoding.step()
        for row in again:
            self._waiting.add(row)
        self._counts["restarted"] += len(again)
        self._counts["generated_tokens"] += sum(step.token is not None for step in steps)
        return [_response(step) for step in steps]


def _promised(row: Row) -> int:
    """Tokens that a row's cache will have room for: merged exactly, it then grows by pages."""
    growth = min(row.max_tokens - len(row.tokens), GROWTH)
    return row.length + -(-growth // PAGE) * PAGE


def _default_eos(model: Any, tokenizer: Any) -> frozenset[int]:
    found: set[int] = set()
    for value in (getattr(model.config, "eos_token_id", None), tokenizer.eos_token_id):
        ids = value if isinstance(value, list) else [value]
        found.update(i for i in ids if isinstance(i, int))
    return frozenset(found)


def _response(step: Step) -> Response:
    row = step.row
    if step.error is not None:
        return _failed(row, step.error)
    response = Response(row.uid, row.request_id, step.token, step.text, step.logprobs)
    if row.finish_reason is not None:
        response.finish_reason = row.finish_reason
        response.usage, response.times = row.usage(), row.times()
    return response


def _ended(row: Row, reason: FinishReason | Literal["cancelled", "error"]) -> Response:
    return Response(
        row.uid, row.request_id, finish_reason=reason, usage=row.usage(), times=row.times()
    )


def _failed(row: Row, error: Exception) -> Response:
    if not isinstance(error, MlxqError):
        error = GenerationFailed(f"the model raised {type(error).__name__}: {error}")
    response = _ended(row, "error")
    response.error = error
    return response
