"""A worker without a model that knows the answers to the bundled samples.

``STAND_IN`` in the environment says how it behaves: ``right``; ``wrong`` answers; ``crash`` at
the first job; ``deaf`` takes no job; ``echo`` prints its arguments and ends.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from typing import Any

import redis

from mlxq_schemas import GROUP, Failed, Finished, Job, Keys, Result, Started, Token, Usage
from mlxq_schemas.scripts import script
from mlxq_schemas.wire import decode_job, encode_event

MODE = os.environ.get("STAND_IN", "right")


def answers() -> dict[tuple[str, tuple[str, ...]], str | None]:
    """Expected texts by prompt and images."""
    from mlxq_producer.samples import sample_jobs

    found = {}
    for sample in sample_jobs():
        files = (path for path in sample.images if path.exists())
        blobs = (f"blob:{hashlib.sha256(path.read_bytes()).hexdigest()}" for path in files)
        found[sample.prompt, tuple(blobs)] = sample.expect
    return found


class StandIn:
    def __init__(self, url: str, queue: str) -> None:
        self.client = redis.Redis.from_url(url)
        self.keys = Keys(queue)
        self.answers = answers()

    def run(self, name: Any, keys: list[str], *args: Any) -> Any:
        return self.client.eval(script(name), len(keys), *keys, *args)

    def work(self) -> None:
        for stream in self.keys.all_jobs():
            self.client.xgroup_create(stream, GROUP, "0", mkstream=True)
        while True:
            self.client.zadd(self.keys.workers, {"stand-in": time.time() + 60})
            if MODE == "deaf":
                time.sleep(0.05)
                continue
            for stream in self.keys.all_jobs():
                read: Any = self.client.xreadgroup(GROUP, "stand-in", {stream: ">"}, block=20)
                for _, entries in read:
                    for entry, fields in entries:
                        self.answer(stream, entry, fields[b"id"].decode())

    def answer(self, stream: str, entry: bytes, job_id: str) -> None:
        if MODE == "crash":
            sys.exit("the stand-in gives up")
        keys = self.keys
        names = [keys.job(job_id), keys.events(job_id)]
        of_job = [*names, keys.result(job_id), keys.stray(job_id), keys.dead, *keys.all_jobs()]
        args = (job_id, "stand-in", stream, entry, GROUP, "new", 600, 600)
        claimed = self.run("claim", of_job, *args)
        _, epoch, _, _, _, spec, *_ = claimed
        job = decode_job(spec, job_id)
        text = self.text_for(job)
        words = [f"{word} " for word in text.split(" ")[:-1]] + text.split(" ")[-1:] if text else []
        events: list[Any] = [Started(job=job_id), *(Token(job=job_id, text=w) for w in words)]
        self.run("append", names, epoch, keys.tokens(job_id), *map(encode_event, events))
        if text is None:
            end: Any = Failed(job=job_id, code="media_invalid", message="not an image")
            result = Result(job=job_id, type="failed", code=end.code, message=end.message)
            reason = (end.code, end.message)
        else:
            usage = Usage(completion_tokens=len(words))
            end = Finished(job=job_id, reason="stop", text=text, usage=usage)
            result = Result(job=job_id, type="finished", text=text, usage=usage)
            reason = ("", "")
        names += [keys.result(job_id), keys.results, keys.dead, stream]
        packed = (encode_event(end), encode_event(result), keys.tokens(job_id))
        ends = (epoch, job_id, end.type, *packed, 600, GROUP, entry, *reason, 600)
        self.run("finish", names, *ends)

    def text_for(self, job: Job) -> str | None:
        if MODE == "wrong":
            return "no idea"
        blobs = tuple(ref.url for _, ref in job.media() if ref.error is None)
        return self.answers[job.prompt or "", blobs]


def main() -> None:
    if MODE == "echo":
        print(json.dumps(sys.argv[1:]))
        return
    StandIn(os.environ["MLXQ_REDIS_URL"], os.environ["MLXQ_QUEUE"]).work()


main()
