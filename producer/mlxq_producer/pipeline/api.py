"""Captions from Python, in one call."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from mlxq_producer.client import Producer
from mlxq_producer.pipeline.embedded_queue import EmbeddedQueue
from mlxq_producer.pipeline.item import Row
from mlxq_producer.pipeline.output import Existing
from mlxq_producer.pipeline.plan import Plan
from mlxq_producer.pipeline.post import Post
from mlxq_producer.pipeline.run import Run
from mlxq_producer.pipeline.sidecars import Kind
from mlxq_producer.pipeline.sources import Choice, Sources
from mlxq_producer.pipeline.summary import Summary
from mlxq_producer.pipeline.template import Literal, Template
from mlxq_schemas.errors import ConfigError

MEDIA_TTL: Final = 3600
"""Seconds that a picture stays on the server: millions of them pass through, few are under way."""

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


def caption(
    sources: Paths,
    *,
    prompt: str | None = None,
    template: str | None = None,
    outputs: Paths = (),
    sidecar: Kind | Sequence[Kind] = (),
    out_dir: str | os.PathLike[str] | None = None,
    existing: Existing = "skip",
    retry_failed: bool = False,
    producer: Producer | None = None,
    embedded: bool = False,
    model: str | None = None,
    system: str | None = None,
    sampling: Mapping[str, Any] | None = None,
    post: Post | None = None,
    choice: Choice | None = None,
    columns: Mapping[str, str] | None = None,
    text_only: bool = False,
    window: int = 64,
    ordered: bool = False,
    each: Callable[[Row], object] | None = None,
) -> Summary:
    """Caption files, folders, patterns, manifests or URLs; returns counts when all is done.

    ::

        from mlxq_producer import caption

        summary = caption("pics", prompt="Describe the image.", embedded=True, sidecar="txt")
        print(summary.done, "captions")

    The rows go to ``outputs`` (``.jsonl``, ``.csv``, ``.parquet``, or with their pictures
    ``NAME-%06d.tar``), to ``sidecar`` files beside the pictures or under ``out_dir``, and to
    ``each``. Called again, also after a kill, it does only what is missing from its outputs;
    ``retry_failed`` does only what failed.

    Args:
        sources: As on the command line of ``mlxq caption``.
        prompt: What to ask of each item; or ``template``, with ``{fields}`` of the item's row.
        existing: What becomes of outputs that are there: ``skip``, ``overwrite``, ``append``.
        producer: Whose queue to use; default one on ``MLXQ_REDIS_URL``.
        embedded: Start a server and a worker for this call, with ``model`` (default: the small
            one of the package).
        sampling: Fields of :class:`~mlxq_schemas.Sampling`.
        columns: A manifest's names for the columns ``image`` and ``id``.
        text_only: Rows have no pictures: only their fields are used.
        window: Jobs in flight at most.
        ordered: Write rows in the order of the items.

    Raises:
        ConfigError: something asked for cannot be done; nothing was sent.
        NothingFound: there is nothing to caption.
        NoImageColumn: a manifest has no column with pictures.
        OutputInUse: another run writes there.
        QueueUnavailable: the server stayed away.
    """
    if (prompt is None) == (template is None):
        raise ConfigError("give prompt or template, one of them")
    plan = Plan(
        sources=Sources(_texts(sources), dict(columns or {}), text_only=text_only),
        prompt=Template(template) if template is not None else Literal(prompt or ""),
        choice=choice or Choice(),
        system=system,
        model=model,
        insist=not embedded,
        sampling=dict(sampling or {}),
        post=post or Post(),
        outputs=[Path(path) for path in _texts(outputs)],
        sidecars=(sidecar,) if isinstance(sidecar, str) else tuple(sidecar),
        out_dir=None if out_dir is None else Path(out_dir),
        existing=existing,
        retry_failed=retry_failed,
        window=window,
        ordered=ordered,
    )
    if embedded and producer is not None:
        raise ConfigError("give a producer, or embedded=True, not both")
    with opened(plan, producer=producer, embedded=embedded) as run:
        for row in run.rows():
            if each is not None:
                each(row)
    return run.summary


@contextmanager
def opened(
    plan: Plan,
    *,
    producer: Producer | None = None,
    embedded: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Generator[Run]:
    """A run of the plan, with the queue that it needs; ``say`` hears of what takes a while."""
    plan.check()
    with ExitStack() as stack:
        if embedded:
            say("starting a server and a worker")
            folders = plan.sources.folders()
            own = stack.enter_context(EmbeddedQueue(plan.model, folders))
            plan = replace(plan, insist=False, folders=folders)
            run = Run(plan, own.producer, own.check)
        else:
            run = Run(plan, producer or stack.enter_context(Producer(media_ttl=MEDIA_TTL)))
        stack.callback(run.close)
        yield run


def _texts(paths: Paths) -> list[str]:
    given = [paths] if isinstance(paths, str | os.PathLike) else paths
    return [os.fspath(path) for path in given]
