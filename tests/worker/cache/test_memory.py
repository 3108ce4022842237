"""Memory over thousands of jobs: caches and rows stay within what they were given."""

from __future__ import annotations

import gc
import os
import random
from collections import Counter
from typing import Any

import mlx.core as mx
import pytest

from cache_session import MEGABYTE, WORDS
from mlxq_schemas import Sampling
from mlxq_worker.engine import BatchGenerator, Request
from mlxq_worker.models.inputs import build_inputs
from mlxq_worker.models.load import LoadedModel, load_model
from mlxq_worker.models.prepared import Prepared
from pictures import random_picture

SHORT = os.environ.get("MLXQ_TEST_SHORT") == "1"
JOBS = 300 if SHORT else 5000
PREFIXES, FEATURES, ROWS = 3 * MEGABYTE, MEGABYTE // 8, 9 * MEGABYTE
"""Most bytes of prefixes, of pictures, and of rows."""


def make_pool(loaded: LoadedModel, rng: random.Random) -> list[Prepared]:
    """Prompts with common beginnings: tables, before or behind none, one or two of 30 pictures."""
    pictures = {f"p{n}": random_picture(rng) for n in range(30)}
    tables = [" ".join(rng.choices(WORDS, k=rng.choice((5, 60, 120)))) for _ in range(20)]
    pool: list[Prepared] = []
    for n in range(150):
        names = rng.sample(sorted(pictures), n % 3)
        images = [{"type": "image"}] * len(names)
        parts = [{"type": "text", "text": rng.choice(tables)}, *images]
        parts = [*(reversed(parts) if n % 2 else parts), {"type": "text", "text": "Describe it."}]
        words = loaded.processor.apply_chat_template(
            [{"role": "user", "content": parts}], add_generation_prompt=True, tokenize=False
        )
        pool.append(build_inputs(loaded.processor, words, [pictures[x] for x in names], names))
    return pool


def make_request(number: int, pool: list[Prepared], rng: random.Random) -> Request:
    """One of the pool, or a text of its own."""
    own = Prepared([rng.randrange(300, 900) for _ in range(rng.randrange(1, 200))])
    prepared = own if number % 4 == 0 else rng.choice(pool)
    sampling = Sampling(max_tokens=rng.choice((1, 2, 4, 12)), temperature=number % 2, seed=number)
    return Request(str(number), prepared=prepared, sampling=sampling)


def watch(generator: BatchGenerator, most: dict[str, int]) -> dict[str, Any]:
    """Raise ``most`` to what is held now."""
    stats = generator.stats()
    now = {
        "prefixes": stats["prefix_bytes"],
        "features": stats["feature_bytes"],
        "rows": stats["cache_bytes"],
        "active": mx.get_active_memory(),
    }
    for name, value in now.items():
        most[name] = max(most.get(name, 0), value)
    return stats


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_memory_stays_within_its_bound():
    loaded = load_model()
    rng = random.Random(7)
    pool = make_pool(loaded, rng)
    gc.collect()
    weights = mx.get_active_memory()
    generator = BatchGenerator(
        loaded.model,
        loaded.processor,
        max_rows=8,
        prefill_step=256,
        max_cache_bytes=ROWS,
        prefix_cache_bytes=PREFIXES,
        feature_cache_bytes=FEATURES,
    )
    first: dict[str, int] = {}
    later: dict[str, int] = {}
    ends: Counter[str | None] = Counter()
    came = 0
    while came < JOBS or generator.has_work():
        while came < JOBS and came - ends.total() < 12:
            generator.insert([make_request(came, pool, rng)])
            if came % 50 == 0:
                generator.abort(str(came))
            came += 1
        ends.update(response.finish_reason for response in generator.next() if response.finished)
        watch(generator, first if came < JOBS / 3 else later)
    stats = generator.stats()
    most = {name: max(first[name], later[name]) for name in first}
    assert ends.total() == JOBS
    assert ends["cancelled"] == JOBS // 50
    assert most["prefixes"] <= PREFIXES
    assert most["features"] <= FEATURES
    assert most["rows"] <= ROWS * 1.05
    assert most["active"] <= (weights + ROWS + PREFIXES + FEATURES) * 1.05
    assert later["active"] <= first["active"] * 1.05
    assert min(stats["prefix_evicted"], stats["feature_evicted"]) > 0
    assert stats["cached_tokens"] > 0
    generator.close()
    del generator
