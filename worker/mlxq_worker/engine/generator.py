"""The continuous batch generator: requests join and leave a running batch at any step."""

from __future__ import annotations

import secrets
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from mlxq_worker.cache.caches import Caches
from mlxq_worker.cache.packing import Packing
from mlxq_worker.engine.cohorts import Cohorts, most_tokens
from mlxq_worker.engine.incoming import check_known_ids, prepare
from mlxq_worker.engine.prefill import PAGE, Prefill, PrefillPlan
from mlxq_worker.engine.recall import Recall
from mlxq_worker.engine.recovery import Recovery, drain
from mlxq_worker.engine.request import Request, Response
from mlxq_worker.engine.responses import ended, failed, response
from mlxq_worker.engine.row import Row
from mlxq_worker.engine.text import StopMatcher, make_detokenizers
from mlxq_worker.engine.waiting import HEAD_START, WaitingLine
from mlxq_worker.models.device import Fault, blame, device_fault
from mlxq_worker.models.footprint import Footprint, Load
from mlxq_worker.models.load import eos_ids
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

    An error of the device (Metal, CUDA, memory) is no row's: all rows start again from the tokens
    that they have, with less work at once for a while.

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
    rows are admitted by it, and the youngest are preempted before growth exceeds it. ``eos``: ids
    that end a row (default: those of the model's config and tokenizer). ``context``: most tokens
    of prompt and answer together. ``quantisation`` of decoding rows' keys and
    values gives up exactness. ``prefix_cache_bytes`` and ``feature_cache_bytes``: most
    bytes of remembered prefixes and pictures (0: off, on disk too); ``disk`` keeps them over
    restarts, under ``identity``, which must name weights and processor settings. ``ssd_only``: in
    memory there is only what rows wait for. ``packing`` of keys and values on disk gives up
    exactness.
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
        ssd_only: bool = False,
        packing: Packing | None = None,
    ) -> None:
        if max_rows < 1 or prefill_step < 1 or mixed_step < 1:
            raise ValueError("max_rows, prefill_step and mixed_step must be at least 1")
        if min(max_cache_bytes, prefix_cache_bytes, feature_cache_bytes) < 0:
            raise ValueError("sizes in bytes must not be negative; 0 means off")
        self._adapter = adapter_for(model, processor)
        self._processor = processor
        tokenizer = getattr(processor, "tokenizer", processor)
        self._new_detokenizer = make_detokenizers(tokenizer)
        self._eos = eos_ids(model.config, tokenizer) if eos is None else eos
        self._context = context
        self._max_rows = self._crowd = max_rows
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
            ssd_only=ssd_only,
            packing=packing,
        )
        self._recall = Recall(caches, self._adapter)
        self._prefill = Prefill(self._adapter, self._recall)
        if quantisation is not None:
            check(self._adapter, quantisation)
        self._decoding = Cohorts(self._adapter, self._recall.proof, quantisation)
        self._device = Recovery(max_rows, prefill_step)
        self._late: Exception | None = None
        self._footprint = Footprint(self._adapter, quantisation) if max_cache_bytes else None
        self._aborts: deque[tuple[int | str, int]] = deque()
        self._last_uid = 0
        self._outbox: list[Response] = []
        self._counts: Counter[str] = Counter()

    @property
    def vocabulary(self) -> int:
        """Token ids from 0 up to this have an embedding; 0: not known."""
        return self._adapter.vocabulary

    def insert(self, requests: Sequence[Request]) -> list[int]:
        """Queue requests and return their uids. Cheap: no MLX work.

        One that names ids which the model lacks ends with an error in the next step.
        """
        return [self._insert(request) for request in requests]

    def next(self) -> list[Response]:
        """One step: at most one prefill slice and one decode step. [] when idle.

        Raises :class:`~mlxq_schemas.errors.DeviceFailed` when the device fails again and again;
        no row is lost with it.
        """
        if not self.has_work():
            self._aborts.clear()
            self._recall.tend()
            return []
        self._counts["steps"] += 1
        fault: tuple[Fault, str, list[Row]] | None = None
        try:
            self._step()
        except BaseException as error:
            running = self._start_again()  # also after Ctrl-C
            kind = device_fault(error)
            if kind is None:
                raise
            fault = kind, str(error), running
        if fault is not None:  # outside, where no traceback holds arrays of the failed step
            self._recover(*fault)
        # Whatever raises above, what has been said of a row until then waits here.
        responses, self._outbox = self._outbox, []
        return responses

    def _step(self) -> None:
        late, self._late = self._late, None
        if late is not None:
            raise late
        self._end_aborted()
        self._admit()
        self._prefill_slice()
        self._look_ahead()  # behind those whose turn has come, or they would want its room
        self._make_room(0)
        self._decode()
        if not (self._waiting or self._prefilling or len(self._decoding)):
            self._recall.settle()

    def _start_again(self) -> list[Row]:
        """All rows wait again, with the tokens that they have; those that ran."""
        running = {row.uid: row for row in (*self._prefilling, *self._decoding.clear())}
        self._collect()
        rows = {row.uid: row for row in self._waiting} | running
        self._prefilling = []
        self._waiting.drop(lambda _: True)
        for row in rows.values():
            row.restart(row.suspicion)
            self._waiting.add(row)
        return list(running.values())

    def _recover(self, kind: Fault, why: str, running: list[Row]) -> None:
        """After a device error in a step in which some rows ran: nothing of it is believed."""
        self._counts["restarted"] += len(running)
        self._recall.distrust()
        drain()
        if kind is Fault.MEMORY:
            self._recall.make_room(self._recall.nbytes)
            mx.clear_cache()
        ran = {row.uid for row in running}
        others = [row for row in self._waiting if row.uid not in ran]
        end = self._device.fault(kind, why, running, others)
        for row in running:
            if row.alone is not None:  # behind the others, who may fare better
                self._waiting.drop(lambda other, row=row: other is row)
                row.came = self._counts["steps"] + 1 + HEAD_START * row.request.priority
                if end is None:
                    self._waiting.add(row)
                else:
                    self._outbox.append(failed(row, end))

    def remove(self, uids: Sequence[int]) -> None:
        """Drop rows at once and without a response; unknown uids are ignored."""
        leaving = set(uids)
        self._drop(lambda row: row.uid in leaving)

    def abort(self, which: int | str) -> None:
        """End a request at the next step, wherever it is; any thread may call this.

        A uid names one life of a request. A request id names those inserted so far: a request
        of that name that comes later lives.
        """
        self._aborts.append((which, self._last_uid))

    def has_work(self) -> bool:
        """True while a request is queued, in prefill or decoding, or has a response to give."""
        return bool(self._waiting or self._prefilling or len(self._decoding) or self._outbox)

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
            "device_errors": self._device.errors,
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
        self._outbox += [ended(row, "cancelled") for row in self._drop(lambda _: True)]
        if self._late is not None:
            self._recall.distrust()
        self._recall.close()
        responses, self._outbox = self._outbox, []
        return responses

    def _insert(self, request: Request) -> int:
        row = self._new_row(request)
        try:
            check_known_ids(request, self.vocabulary)
            row.recall_prior()
        except Exception as error:
            self._outbox.append(failed(row, error))
        else:
            self._waiting.add(row)
        return row.uid

    def _new_row(self, request: Request) -> Row:
        self._last_uid += 1
        sampling = request.sampling
        return Row(
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

    def _end_aborted(self) -> None:
        uids: set[int] = set()
        lives: dict[str, int] = {}
        while self._aborts:
            which, last = self._aborts.popleft()
            if isinstance(which, int):
                uids.add(which)
            else:
                lives[which] = last
        if uids or lives:
            dropped = self._drop(
                lambda row: row.uid in uids or row.uid <= lives.get(row.request_id, 0)
            )
            self._outbox += [ended(row, "cancelled") for row in dropped]

    def _drop(self, chosen: Callable[[Row], bool]) -> list[Row]:
        """Take rows out of wherever they are."""
        everywhere = [*self._waiting, *self._prefilling, *self._decoding]
        dropped = [row for row in everywhere if chosen(row)]
        try:
            self._decoding.remove(dropped)
        except Exception as error:  # the device's, which the next step sees to
            self._start_again()
            self._late = error
        self._waiting.drop(chosen)
        self._prefilling = [row for row in self._prefilling if not chosen(row)]
        self._collect()
        return dropped

    def _cache_bytes(self) -> int:
        return self._decoding.nbytes + sum(row.nbytes for row in self._prefilling)

    def _make_room(self, more: int, keep: Row | None = None) -> bool:
        """While the rows, what their next step adds and ``more`` bytes are over the limit: caches
        shrink, then the youngest rows go back, but for the last. False if ``keep`` had to go."""
        footprint = self._footprint
        if footprint is None:
            return True
        while True:
            need = self._cache_bytes() + self._decoding.growth(footprint) + more
            self._recall.make_room(need + self._recall.nbytes - self._max_cache_bytes)
            running = [*self._decoding, *self._prefilling]
            if need <= self._max_cache_bytes or len(running) < 2:
                return True
            youngest = max(running, key=lambda row: row.uid)
            self._send_back(youngest)
            if youngest is keep:
                return False

    def _send_back(self, row: Row) -> None:
        """Preempt a row: it starts again where it was, when its turn comes, but not before one
        of the others has ended: else it would be fed in vain again and again."""
        self._prefilling = [other for other in self._prefilling if other is not row]
        try:
            self._decoding.remove([row])
        finally:
            self._collect()
            row.restart()
            self._waiting.add(row)
        self._counts["preempted"] += 1
        self._crowd = len(self._prefilling) + len(self._decoding)

    def _fits(self, row: Row) -> bool:
        running = len(self._prefilling) + len(self._decoding)
        if running == 0:
            return True
        if running < self._crowd:
            self._crowd = self._max_rows
        if running >= min(self._crowd, self._device.rows):
            return False
        if self._footprint is None:
            return True
        need = self._footprint.most(self._load(row))
        if need > self._max_cache_bytes:
            return False
        self._recall.make_room(need + self._recall.nbytes - self._max_cache_bytes)
        return True

    def _load(self, row: Row) -> Load:
        """What is promised to the rows in the engine and to one more."""
        filling = [_promised(other) for other in (*self._prefilling, row)]
        kinds = (self._decoding.of_kind(quantised=kind) for kind in (False, True))
        exact, packed = ([_promised(other) for other in rows] for rows in kinds)
        exact += filling
        return Load(
            count=len(exact) + len(packed),
            longest=max(*exact, *packed, 0),
            exact=most_tokens(exact),
            packed=most_tokens(packed),
            filling=filling,
            slice=self._prefill_step,
        )

    def _admit(self) -> None:
        """Move queued rows to prefill while there is room; those with nothing to do end here."""
        while self._waiting:
            row = self._waiting.peek()
            try:
                row.prepared = row.prepared or prepare(
                    row.request, self._processor, self.vocabulary
                )
            except Exception as error:
                blame(error)
                self._outbox.append(failed(self._waiting.pop(), error))
                continue
            row.max_tokens = min(row.max_tokens, self._context - len(row.prompt))
            if row.finish_reason or len(row.tokens) >= row.max_tokens:
                self._waiting.pop()
                self._outbox.append(ended(row, row.finish_reason or "length"))
            elif self._fits(row):
                self._prefilling.append(self._waiting.pop())
            else:
                break

    def _look_ahead(self) -> None:
        """What the SSD holds for the next rows comes while others decode."""
        if self._recall.on_disk:
            coming = self._waiting.next_up(self._max_rows)
            for row in coming:
                self._recall.prefetch(row)
            self._recall.tend(coming, self._prefilling)

    def _prefill_slice(self) -> None:
        """Feed prompt tokens up to the budget; rows that are full join the decoding ones."""
        most = self._mixed_step if len(self._decoding) else self._prefill_step
        budget = min(most, self._device.slice)
        rows = self._ready()
        if self._prefilling and not rows and not len(self._decoding):
            self._recall.wait(self._prefilling, PATIENCE)
        plan = PrefillPlan(rows, budget)
        self._prefill.encode(plan.beginning(), rows)
        for row, share in plan:
            if any(other is row for other in self._prefilling):  # not sent back meanwhile
                plan.spent(self._feed(row, share))
        ready = [row for row in self._prefilling if Prefill.done(row)]
        for row in ready:
            row.begin_decode()
        self._decoding.join(ready)
        joined = {row.uid for row in ready}
        self._prefilling = [row for row in self._prefilling if row.uid not in joined]
        self._collect()

    def _ready(self) -> list[Row]:
        """Rows in prefill for which nothing is awaited; a look-up that fails ends its row."""
        ready: list[Row] = []
        for row in list(self._prefilling):
            try:
                if self._recall.ready(row):
                    ready.append(row)
            except Exception as error:
                blame(error)
                self._fail(row, error)
        return ready

    def _feed(self, row: Row, share: int) -> int:
        """One row's slice; how many tokens were fed."""
        try:
            end = self._prefill.reach(row, share)
            if not self._make_room_for(row, end):
                return 0
            fed = self._prefill.feed(row, end)
        except Exception as error:
            blame(error)
            self._fail(row, error)
            return 0
        self._count_fed(row, fed)
        return fed

    def _count_fed(self, row: Row, fed: int) -> None:
        """Tokens of the prompt, and apart from these what was generated before and is fed again."""
        of_prompt = row.fed <= len(row.prompt)
        # The last token of a prompt is fed by the row's first decode step.
        last = Prefill.done(row) and not row.tokens
        self._counts["prompt_tokens"] += (fed if of_prompt else 0) + last
        self._counts["repeated_tokens"] += 0 if of_prompt else fed

    def _make_room_for(self, row: Row, end: int) -> bool:
        """Before a slice: make room for what it adds to the row's own cache."""
        if self._footprint is None or row.filling is None:
            return True
        after = self._footprint.filled(row.filling.cache, end - row.fed)
        return self._make_room(after - row.nbytes, row)

    def _fail(self, row: Row, error: Exception) -> None:
        """End a row in prefill."""
        self._prefilling = [other for other in self._prefilling if other is not row]
        self._outbox.append(failed(row, error))

    def _decode(self) -> None:
        self._decoding.step()
        self._collect()
        self._recall.publish()

    def _collect(self) -> None:
        """Take over what came to light of decoding rows, and those that must start again."""
        steps, again = self._decoding.collect()
        self._outbox += [response(step) for step in steps]
        for row in again:
            self._waiting.add(row)
        self._counts["restarted"] += len(again)
        read = sum(step.token is not None for step in steps)
        self._counts["generated_tokens"] += read
        if read:
            self._device.good(read)


def _promised(row: Row) -> int:
    """Tokens that a row's cache will have room for: merged exactly, it then grows by pages."""
    growth = min(row.max_tokens - len(row.tokens), GROWTH)
    return row.length + -(-growth // PAGE) * PAGE
