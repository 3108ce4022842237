"""What a change costs where nothing goes wrong: ``python -m bench.steady_path TREE [TREE]``.

Two checkouts, each with its own ``.venv``, run in turn in one run, since machines drift: 16 rows
that decode without caches, with them, and with a folder too. Compared are the medians of a step
and of a whole round in pairs; counted are the forward passes and the waits for the device of a
step, which do not depend on the machine. One tree beside itself shows how fine the measure is.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

SETTINGS = ("no caches", "caches", "caches, SSD")
ROWS = 16


@dataclass(frozen=True)
class Round:
    """Seconds of the median step and of all; per step: forward passes, waits, work queued."""

    step: float
    whole: float
    passes: float
    waits: float
    queued: float


@dataclass(frozen=True)
class Comparison:
    """Two trees with one setting; ratios are second to first, medians of pairs of rounds.

    ``low`` and ``high``: the quartiles of the steps' ratio.
    """

    setting: str
    first: Round
    second: Round
    step: float
    low: float
    high: float
    whole: float


def compare(first: Path, second: Path, rounds: int, tokens: int) -> list[Comparison]:
    """Each tree in a process of its own; which goes first changes from round to round."""
    found: dict[str, list[tuple[Round, Round]]] = {setting: [] for setting in SETTINGS}
    with ExitStack() as stack:
        trees = [stack.enter_context(_Tree(tree, tokens)) for tree in (first, second)]
        for setting in SETTINGS:  # what is counted need not be timed, and warms up
            for tree in trees:
                tree.count(setting)
        for n in range(rounds):
            for setting in SETTINGS:
                order = trees if n % 2 else trees[::-1]
                told = {id(tree): tree.run(setting, n) for tree in order}
                found[setting].append((told[id(trees[0])], told[id(trees[1])]))
    return [_compared(setting, pairs) for setting, pairs in found.items()]


def _compared(setting: str, pairs: Sequence[tuple[Round, Round]]) -> Comparison:
    steps = [second.step / first.step for first, second in pairs]
    quarters = statistics.quantiles(steps, n=4) if len(steps) > 1 else steps * 3
    whole = statistics.median(second.whole / first.whole for first, second in pairs)
    firsts, seconds = zip(*pairs, strict=True)
    middle = statistics.median(steps)
    return Comparison(
        setting, _median(firsts), _median(seconds), middle, quarters[0], quarters[2], whole
    )


def _median(rounds: Sequence[Round]) -> Round:
    return Round(*(statistics.median(values) for values in zip(*map(_values, rounds), strict=True)))


def _values(one: Round) -> tuple[float, ...]:
    return tuple(asdict(one).values())


class _Tree:
    """A process that runs this file with a tree's own Python and packages."""

    def __init__(self, tree: Path, tokens: int) -> None:
        command = [str(tree / ".venv/bin/python"), __file__, "--serve", str(tokens)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._counts: dict[str, dict[str, float]] = {}
        place = Path(self._read())
        if tree.resolve() not in place.parents:
            self.close()
            raise SystemExit(f"{tree}/.venv runs the code in {place}, not that of the tree")

    def __enter__(self) -> _Tree:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def count(self, setting: str) -> None:
        self._counts[setting] = self._ask(setting, 0, True)

    def run(self, setting: str, seed: int) -> Round:
        return Round(**self._ask(setting, seed, False), **self._counts[setting])

    def _ask(self, *question: str | int | bool) -> dict[str, float]:
        assert self._process.stdin
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> Any:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self._process.args}: ended")
        return json.loads(line)


def serve(tokens: int) -> None:
    """In a tree's own process: say where its code is, then run or count for each line."""
    import mlxq_worker
    from mlxq_worker.models.load import load_model

    print(json.dumps(str(Path(mlxq_worker.__file__).resolve())), flush=True)
    loaded = load_model(None, "float32")
    for line in sys.stdin:
        setting, seed, counting = json.loads(line)
        calls = Counter[str]()
        with ExitStack() as stack:
            generator = stack.enter_context(_generator(loaded, setting))
            if counting:
                stack.enter_context(_counted(loaded.model, calls))
            steps, whole, used = _decode(loaded, generator, tokens, seed, calls)
        times = {"step": statistics.median(steps), "whole": whole}
        counts = {name: used[name] / len(steps) for name in ("passes", "waits", "queued")}
        print(json.dumps(counts if counting else times), flush=True)


@contextmanager
def _generator(loaded: Any, setting: str) -> Iterator[Any]:
    from mlxq_worker.cache.caches import LAYOUT
    from mlxq_worker.cache.disk import DiskTier
    from mlxq_worker.engine import BatchGenerator

    with tempfile.TemporaryDirectory(prefix="mlxq-steady-") as made:
        options: dict[str, Any] = {"max_rows": ROWS, "eos": loaded.eos, "identity": "steady"}
        if setting != "no caches":
            options |= {"prefix_cache_bytes": 1 << 30, "feature_cache_bytes": 1 << 28}
        if setting == "caches, SSD":
            folder = Path(made, "cache")
            options["disk"] = DiskTier(folder, max_bytes=1 << 30, layout=LAYOUT, admit_at=1)
        generator = BatchGenerator(loaded.model, loaded.processor, **options)
        yield generator
        generator.close()


def _decode(
    loaded: Any, generator: Any, tokens: int, seed: int, calls: Counter[str]
) -> tuple[list[float], float, Counter[str]]:
    """Seconds of each step in which all rows decode, of the whole, and the calls in these steps."""
    from mlxq_worker.engine.bench import make_requests

    requests = make_requests(loaded, ROWS, "text", tokens, seed)
    used = Counter[str]()
    steps: list[float] = []
    began = time.perf_counter()
    generator.insert(requests)
    while generator.has_work():
        earlier, before = calls.copy(), time.perf_counter()
        responses = generator.next()
        now = time.perf_counter()
        if len(responses) == ROWS and not any(response.finished for response in responses):
            steps.append(now - before)
            used += calls - earlier
    return steps, time.perf_counter() - began, used


@contextmanager
def _counted(model: Any, calls: Counter[str]) -> Iterator[None]:
    """Count forward passes, waits for the device, and work queued, until the end of the block."""
    import mlx.core as mx
    import numpy as np

    def wrap(owner: Any, name: str, kind: str, when: Callable[..., bool]) -> None:
        original = getattr(owner, name)

        def counted(*arguments: Any, **named: Any) -> Any:
            calls[kind] += when(*arguments)
            return original(*arguments, **named)

        undo.callback(setattr, owner, name, original)
        setattr(owner, name, counted)

    def of_device(*arguments: Any) -> bool:
        return isinstance(arguments[0], mx.array)

    with ExitStack() as undo:
        wrap(type(model.language_model), "__call__", "passes", lambda *_: True)
        wrap(mx, "eval", "waits", lambda *_: True)
        wrap(mx, "synchronize", "waits", lambda *_: True)
        wrap(mx, "async_eval", "queued", lambda *_: True)
        for name in ("array", "asarray"):
            wrap(np, name, "waits", of_device)
        for name in ("item", "tolist", "__array__", "__bool__", "__int__", "__float__"):
            if hasattr(mx.array, name):
                wrap(mx.array, name, "waits", of_device)
        yield


def table(comparisons: Sequence[Comparison]) -> str:
    """Markdown; counts of both trees where these differ."""
    lines = [
        "| 16 rows | step, ms | ratio (quartiles) | whole | passes | waits | queued |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in comparisons:
        first, second = one.first, one.second
        cells = [
            one.setting,
            f"{first.step * 1e3:.2f}, {second.step * 1e3:.2f}",
            f"{one.step:.3f} ({one.low:.3f} to {one.high:.3f})",
            f"{one.whole:.3f}",
        ]
        for name in ("passes", "waits", "queued"):
            values = dict.fromkeys(f"{getattr(side, name):.2f}" for side in (first, second))
            cells.append(", ".join(values))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    if sys.argv[1:2] == ["--serve"]:
        serve(int(sys.argv[2]))
        return
    parser = argparse.ArgumentParser(prog="python -m bench.steady_path", description=__doc__)
    parser.add_argument("first", type=Path, help="a checkout with its .venv")
    parser.add_argument("second", type=Path, nargs="?", help="another [default: the first again]")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--tokens", type=int, default=96, help="of each row")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    options = parser.parse_args()
    second = options.second or options.first
    found = compare(options.first, second, options.rounds, options.tokens)
    print(json.dumps([asdict(one) for one in found]) if options.json else table(found))


if __name__ == "__main__":
    main()
