"""Questions about pictures, and what the model alone says to them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mlxq_schemas import Job
from mlxq_worker.build import build_backend
from mlxq_worker.config import WorkerConfig


def ask(instruction: str, picture: Path, question: str) -> dict[str, Any]:
    """A job's messages: an instruction, and a question about one picture."""
    image = {"type": "image_url", "image_url": {"url": str(picture)}}
    user = {"role": "user", "content": [image, {"type": "text", "text": question}]}
    return {"messages": [{"role": "system", "content": instruction}, user]}


def texts_alone(
    questions: Sequence[dict[str, Any]], root: Path, tokens: int, model: str | None = None
) -> list[str]:
    """One row at a time and without caches."""
    config = WorkerConfig(
        model=model,
        max_rows=1,
        prefix_cache_bytes=0,
        feature_cache_bytes=0,
        media_roots=(root,),
        name="solo",
    )
    backend = build_backend(config)
    texts: list[str] = []
    for question in questions:
        job = Job(**question, sampling={"max_tokens": tokens})
        backend.generator.insert([backend.prepare(job, lambda _: None)])
        pieces: list[str] = []
        while backend.generator.has_work():
            pieces += [response.text for response in backend.generator.next()]
        texts.append("".join(pieces))
    backend.generator.close()
    return texts
