"""A worker without a model that answers what it is asked, and fails what is broken."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any

import redis

from lua_worker import LuaWorker
from mlxq_schemas import Finished, Job, Started, Usage
from mlxq_schemas.wire import decode_job


class AnsweringWorker:
    """Answers a job with its prompt and the beginning of its picture's hash.

    A picture whose bytes begin with ``broken`` fails, and so does one whose bytes are gone.
    ``answers`` gives other texts, one after another, to every job; ``pause`` is in seconds before
    each answer.
    """

    def __init__(self, url: str, queue: str, answers: list[str] | None = None) -> None:
        self.client = redis.Redis.from_url(url)
        self.lua = LuaWorker(self.client, queue)
        self.answers = answers or []
        self.jobs: list[Job] = []
        self.pause = 0.0
        self.most_waiting = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._work)

    def __enter__(self) -> AnsweringWorker:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        self._thread.join(30)
        self.client.close()

    def asked(self) -> Counter[str]:
        """How often each picture was asked about, by its hash or path."""
        return Counter(ref.url for job in self.jobs for _, ref in job.media())

    def _work(self) -> None:
        self.client.zadd(self.lua.keys.workers, {"answering": time.time() + 600})
        while not self._end.is_set():
            self.most_waiting = max(self.most_waiting, self.lua.depth())
            for entry, job_id in self.lua.read(4) or [(b"", "")]:
                if not entry:
                    time.sleep(0.002)
                    continue
                self._answer(entry, job_id)

    def _answer(self, entry: bytes, job_id: str) -> None:
        reply = self.lua.claim(job_id, entry)
        if reply[0] != b"ok":
            return  # cancelled meanwhile
        job = decode_job(reply[5], job_id)
        self.jobs.append(job)
        if self.pause:
            time.sleep(self.pause)
        epoch = reply[1]
        self.lua.append(job_id, epoch, Started(job=job_id, worker="answering"))
        text, code = self._text(job)
        usage = Usage(prompt_tokens=7, completion_tokens=len(text.split()))
        end: Any = Finished(job=job_id, reason="stop", text=text, usage=usage)
        assert self.lua.finish(job_id, epoch, entry, text, code, None if code else end) == 1

    def _text(self, job: Job) -> tuple[str, str]:
        url = next((ref.url for _, ref in job.media()), "")
        broken = next((ref.error for _, ref in job.media() if ref.error is not None), None)
        if broken is not None:
            return "", broken.code
        data = self.client.get(self.lua.keys.blob(url.removeprefix("blob:")))
        if data is None and url.startswith("blob:"):
            return "", "media_not_found"
        if isinstance(data, bytes) and data.startswith(b"broken"):
            return "", "media_invalid"
        if self.answers:
            return self.answers[(len(self.jobs) - 1) % len(self.answers)], ""
        prompt = "".join(p.text for m in job.chat() for p in m.parts() if p.type == "text")
        return f"{prompt} {url.removeprefix('blob:')[:8]}".strip(), ""
