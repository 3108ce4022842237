"""Models for the engine's tests, and requests of every kind about them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

import tiny_models
from mlxq_schemas import Sampling, TokenLogprob
from mlxq_worker.engine.generator import BatchGenerator
from mlxq_worker.engine.request import Request, Response
from mlxq_worker.models.load import LoadedModel, load_model
from near_logprobs import near
from pictures import random_picture, table

DEEPSTACK = Path(__file__).parents[2] / "fixtures" / "deepstack"


@pytest.fixture(scope="session")
def bundled() -> LoadedModel:
    """The shipped, trained model."""
    return load_model()


@pytest.fixture(scope="session", params=["bundled", "deepstack", *tiny_models.FAMILIES])
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """One model of each family that is served, in float32."""
    if request.param == "bundled":
        return request.getfixturevalue("bundled")
    if request.param == "deepstack":
        return load_model(str(DEEPSTACK), "float32")
    folder = tmp_path_factory.mktemp(request.param)
    return load_model(str(tiny_models.build(request.param, folder)), "float32")


class Bench:
    """Makes requests for one model and runs them."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.loaded = loaded

    @property
    def shows(self) -> bool:
        """True if the model takes images."""
        return hasattr(self.loaded.processor, "image_processor")

    def generator(self, **options: Any) -> BatchGenerator:
        """A generator of this model; ``options`` are the constructor's."""
        return BatchGenerator(
            self.loaded.model, self.loaded.processor, **{"eos": self.loaded.eos, **options}
        )

    def prompt(self, *turns: tuple[str, int, str]) -> str:
        """The templated text of ``(role, images, text)`` turns; no images for a text model."""
        messages = [
            {
                "role": role,
                "content": [
                    *[{"type": "image"}] * (images if self.shows else 0),
                    {"type": "text", "text": text},
                ],
            }
            for role, images, text in turns
        ]
        text: str = self.loaded.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=False
        )
        return text

    def request(self, name: str, rng: random.Random, **sampling: Any) -> Request:
        """A random request: detailed caption, two images, two turns, or a look-up in a table."""
        kind = rng.randrange(4)
        images = [random_picture(rng) for _ in range((1, 2, 1, 0)[kind] if self.shows else 0)]
        if kind == 0:
            text = self.prompt(("user", 1, "Describe the image in detail."))
        elif kind == 1:
            text = self.prompt(("user", 2, "Describe the second image."))
        elif kind == 2:
            text = self.prompt(
                ("system", 0, table(rng, rng.choice((2, 18)))[0]),
                ("user", 1, "Describe the image."),
                ("assistant", 0, "a red circle"),
                ("user", 0, "How many shapes are there?"),
            )
        else:
            codes, key, _ = table(rng, rng.choice((1, 8, 20)))
            text = self.prompt(("user", 0, f"{codes}\nWhat is the code of {key}?"))
        settings = {"max_tokens": rng.choice((5, 30, 60)), **sampling}
        return Request(
            name,
            prompt=text,
            images=images,
            sampling=Sampling(**settings),
            logprobs=(2, 0, 3, 2)[kind],
        )

    def requests(self, count: int, seed: int = 0, **sampling: Any) -> list[Request]:
        rng = random.Random(seed)
        return [self.request(f"r{n}", rng, **sampling) for n in range(count)]

    def run(
        self,
        requests: Iterable[Request],
        before_step: Callable[[BatchGenerator, int], None] = lambda *_: None,
        **options: Any,
    ) -> dict[str, Outcome]:
        """Insert all requests, run to the end; ``before_step(generator, n)`` may interfere."""
        generator = self.generator(**options)
        generator.insert(list(requests))
        return self.drain(generator, before_step)

    def drain(
        self,
        generator: BatchGenerator,
        before_step: Callable[[BatchGenerator, int], None] = lambda *_: None,
    ) -> dict[str, Outcome]:
        """Step until nothing is left."""
        outcomes: dict[str, Outcome] = {}
        step = 0
        before_step(generator, step)
        while generator.has_work():
            for response in generator.next():
                outcomes.setdefault(response.request_id, Outcome()).add(response)
            step += 1
            before_step(generator, step)
        return outcomes

    def texts(self, count: int, seed: int = 0, **sampling: Any) -> list[Request]:
        """Short requests of text alone that do not end by themselves, with log probabilities."""
        rng = random.Random(seed)
        settings = {"max_tokens": 12, "ignore_eos": True, **sampling}
        return [
            Request(
                f"t{n}",
                prompt_ids=[rng.randrange(20, 1000) for _ in range(rng.randint(2, 30))],
                sampling=Sampling(**settings),
                logprobs=3,
            )
            for n in range(count)
        ]

    @staticmethod
    def outcome() -> Outcome:
        """An empty outcome, to collect a row's responses in."""
        return Outcome()

    def solo(self, requests: Iterable[Request]) -> dict[str, Outcome]:
        """Each request alone in its own generator."""
        alone: dict[str, Outcome] = {}
        for request in requests:
            alone |= self.run([request], max_rows=1)
        return alone


class Outcome:
    """What one row gave. Equal outcomes have equal log probabilities too, to 1e-4."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.text = ""
        self.logprobs: list[TokenLogprob] = []
        self.last: Response | None = None

    def add(self, response: Response) -> None:
        assert self.last is None, "a response after the last one"
        if response.token is not None:
            self.tokens.append(response.token)
        if response.logprobs is not None:
            assert response.logprobs.id == response.token
            self.logprobs.append(response.logprobs)
        self.text += response.text
        if response.finished:
            self.last = response

    @property
    def reason(self) -> str | None:
        return self.last.finish_reason if self.last else None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Outcome):
            return NotImplemented
        mine, others = ((o.tokens, o.text, o.reason) for o in (self, other))
        return mine == others and near(self.logprobs, other.logprobs)

    def __repr__(self) -> str:
        chosen = [round(one.logprob, 4) for one in self.logprobs]
        return f"Outcome({self.text!r}, {self.reason}, {self.tokens}, {chosen})"


@pytest.fixture(scope="session")
def bench_of() -> Callable[[LoadedModel], Bench]:
    """Makes the bench of a model."""
    return Bench


@pytest.fixture(scope="session")
def bench(loaded: LoadedModel) -> Bench:
    return Bench(loaded)


@pytest.fixture(scope="session")
def bundled_bench(bundled: LoadedModel) -> Bench:
    return Bench(bundled)
