"""One tiny model of every family, and prompts for it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from PIL.Image import Image

import tiny_models
from mlxq_schemas import Sampling
from mlxq_worker.engine.generator import BatchGenerator
from mlxq_worker.engine.request import Request
from mlxq_worker.models.inputs import build_inputs
from mlxq_worker.models.load import DtypeName, LoadedModel, load_model
from mlxq_worker.models.prepared import Prepared
from pictures import random_picture

SHOWING = [name for name in tiny_models.FAMILIES if name not in tiny_models.TEXT_ONLY]


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a family's tiny model, written on first use."""
    written: dict[str, Path] = {}

    def folder(name: str) -> Path:
        if name not in written:
            written[name] = tiny_models.build(name, tmp_path_factory.mktemp(name))
        return written[name]

    return folder


@pytest.fixture(scope="session")
def load(folders) -> Callable[..., Subject]:
    """A family's tiny model, loaded once in each type."""
    loaded: dict[tuple[str, DtypeName], Subject] = {}

    def get(name: str, dtype: DtypeName = "float32") -> Subject:
        key = (name, dtype)
        if key not in loaded:
            loaded[key] = Subject(load_model(str(folders(name)), dtype))
        return loaded[key]

    return get


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


@pytest.fixture(scope="session", params=list(tiny_models.FAMILIES))
def subject(request: pytest.FixtureRequest, load) -> Subject:
    """Every family, in float32."""
    return load(request.param)


@pytest.fixture(scope="session", params=SHOWING)
def showing(request: pytest.FixtureRequest, load) -> Subject:
    """Every family that takes images, in float32."""
    return load(request.param)
