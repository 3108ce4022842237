"""A loaded model, and what tests ask of it."""

from __future__ import annotations

import random
from collections.abc import Sequence

from PIL.Image import Image

from mlxq_schemas import Sampling
from mlxq_worker.engine.generator import BatchGenerator
from mlxq_worker.engine.request import Request
from mlxq_worker.models.inputs import build_inputs
from mlxq_worker.models.load import LoadedModel
from mlxq_worker.models.prepared import Prepared
from pictures import random_picture


class Subject:
    """A loaded model, and what tests do with it."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.loaded = loaded
        self.shows = hasattr(loaded.processor, "image_processor")

    def text(self, words: str, images: int = 0) -> str:
        """The templated text of one user turn."""
        template = self.loaded.processor
        if not getattr(template, "chat_template", None):
            template = self.loaded.tokenizer
        parts = [*[{"type": "image"}] * images, {"type": "text", "text": words}]
        text: str = template.apply_chat_template(
            [{"role": "user", "content": parts}], add_generation_prompt=True, tokenize=False
        )
        return text

    def prepare(self, words: str, images: Sequence[Image] = ()) -> Prepared:
        return build_inputs(self.loaded.processor, self.text(words, len(images)), images)

    def prompts(self) -> list[Prepared]:
        """Rows of one token, of text shorter and longer than a window, and of 1 and 2 images."""
        rng = random.Random(5)
        prompts = [
            Prepared([37]),
            self.prepare("Count."),
            self.prepare("fox cat sun dog map key cup hat box pen bird fish tree moon " * 2),
        ]
        if self.shows:
            prompts += [
                self.prepare("Describe the image.", [random_picture(rng)]),
                self.prepare("Describe both.", [random_picture(rng), random_picture(rng)]),
                self.prepare("How many shapes are there?", [random_picture(rng)]),
            ]
        return prompts

    def run(self, prompts: Sequence[Prepared], tokens: int = 12, **options) -> list[list[int]]:
        """Greedy tokens of each prompt, all in one generator; a row joins every other step."""
        generator = BatchGenerator(
            self.loaded.model, self.loaded.processor, **{"eos": frozenset(), **options}
        )
        sampling = Sampling(max_tokens=tokens)
        waiting = [Request(str(n), prepared=p, sampling=sampling) for n, p in enumerate(prompts)]
        outcomes: list[list[int]] = [[] for _ in prompts]
        step = 0
        while waiting or generator.has_work():
            if waiting and step % 2 == 0:
                generator.insert([waiting.pop(0)])
            for response in generator.next():
                assert response.error is None, response.error
                if response.token is not None:
                    outcomes[int(response.request_id)].append(response.token)
            step += 1
        return outcomes

    def alone(self, prompts: Sequence[Prepared], tokens: int = 12, **options) -> list[list[int]]:
        """The same, each prompt in a generator of its own."""
        return [self.run([prompt], tokens, **options)[0] for prompt in prompts]
