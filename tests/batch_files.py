"""Lines and rows of batch files, and a worker that answers by itself."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

from mlxq_schemas import TextPart, Token, TokenLogprob


def request(custom_id: Any, text: str = "hello", **body: Any) -> dict[str, Any]:
    """A line that asks for a chat answer."""
    body = {"messages": [{"role": "user", "content": text}], **body}
    url = "/v1/chat/completions"
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def rows(path: Path) -> list[dict[str, Any]]:
    """The rows of an output or error file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


class Answering:
    """Answers each job with its own text; text that begins with ``fail`` fails."""

    def __init__(self, worker: Any) -> None:
        self.worker = worker
        self.texts: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> Answering:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)

    def _work(self) -> None:
        while not self._stop.is_set():
            try:
                job = self.worker.claim()
            except AssertionError:  # no job waits
                self._stop.wait(0.01)
                continue
            parts = job.chat()[-1].parts()
            text = "".join(part.text for part in parts if isinstance(part, TextPart))
            self.texts.append(text)
            if text.startswith("fail"):
                self.worker.fail(job.id, "generation_failed", "not a number")
                continue
            if job.logprobs is not None:
                one = TokenLogprob(id=7, logprob=-0.5, top={7: -0.5, 9: -1.5})
                self.worker.append(job.id, Token(job=job.id, text=text, ids=[7], logprobs=[one]))
            self.worker.finish(job.id, text)
