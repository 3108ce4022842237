"""What the model alone says: ``python -m chaos.solo FILE`` adds ``text``, ``reason``,
``ids`` and ``logprobs``.

Each template is answered by itself, before anything else runs. Greedy captions are compared with
plain mlx-vlm, too. Where the two likeliest tokens are so near to each other that rounding decides,
no text is the right one, and the template is left out.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

from mlx_vlm import generate

from chaos.templates import Template, data_uri
from mlxq_producer.submission import prepare
from mlxq_worker.config import WorkerConfig
from mlxq_worker.engine.generator import BatchGenerator
from mlxq_worker.models.load import LoadedModel, load_model
from mlxq_worker.prepare.media import MediaPolicy
from mlxq_worker.prepare.preparer import Preparer

MARGIN: Final = 1e-3
"""Nats between the likeliest token and the next, at every step of a greedy text."""


class Solo:
    """Answers one job at a time."""

    def __init__(self) -> None:
        self.loaded: LoadedModel = load_model(None)
        config = WorkerConfig(name="solo")
        policy = MediaPolicy(
            roots=(),
            allow_http=False,
            allow_private_hosts=False,
            max_bytes=config.max_media_bytes,
            max_pixels=config.max_image_pixels,
            min_side=config.min_image_side,
        )
        self._prepare = Preparer(self.loaded.processor, policy, self.loaded.context)

    def answer(self, template: Template) -> dict[str, Any] | None:
        """The template with its text, or None if rounding decides it."""
        fields = dict(template["fields"])
        if template.get("image"):
            fields["images"] = [data_uri(template["image"])]
        job = prepare({"id": template["name"], **fields}, inline_media=True).job
        request = self._prepare(job, lambda _: None)
        request.logprobs = 2
        generator = BatchGenerator(
            self.loaded.model,
            self.loaded.processor,
            max_rows=1,
            eos=self.loaded.eos,
            context=self.loaded.context,
        )
        generator.insert([request])
        text, reason = "", None
        ids, logprobs = list[int](), list[float]()
        while generator.has_work():
            for response in generator.next():
                text += response.text
                reason = response.finish_reason or reason
                ids += [] if response.token is None else [response.token]
                logprobs += [response.logprobs.logprob] if response.logprobs else []
                top = sorted(response.logprobs.top.values()) if response.logprobs else []
                if not job.sampling.temperature and len(top) > 1 and top[-1] - top[-2] < MARGIN:
                    return None
        told = {"logprobs": logprobs} if job.logprobs is not None else {}
        return {**template, "text": text, "reason": reason, "ids": ids, **told}

    def plain(self, template: Template) -> str:
        """The same by mlx-vlm's own loop, for a greedy template with a picture."""
        processor, prompt = self.loaded.processor, template["fields"]["prompt"]
        content = [{"type": "image"}, {"type": "text", "text": prompt}]
        text = processor.apply_chat_template(
            [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
        )
        result = generate(
            *(self.loaded.model, processor, text),
            image=[template["image"]],
            max_tokens=template["fields"]["max_tokens"],
            temperature=0.0,
            verbose=False,
        )
        return str(result.text)


def main() -> None:
    path = Path(sys.argv[1])
    solo = Solo()
    answered = [solo.answer(template) for template in json.loads(path.read_text())]
    kept = [template for template in answered if template is not None]
    for template in kept:
        fields = template["fields"]
        if template.get("image") and not fields.get("ignore_eos"):
            other = solo.plain(template)
            if other != template["text"]:
                sys.exit(f"{fields['prompt']}: {template['text']!r}, plain mlx-vlm: {other!r}")
    path.write_text(json.dumps(kept))


if __name__ == "__main__":
    main()
