"""Any sequence of inserts, steps, aborts and faults leaves each good row equal to its solo run."""

from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)


class Boom(Exception):
    pass


def test_any_sequence_of_events_leaves_every_row_as_if_alone(bundled_bench):
    run_machine(bundled_bench, 12)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_any_sequence_of_events_for_every_family(bench):
    run_machine(bench, 3)


def run_machine(bench, examples: int) -> None:
    """Random inserts, steps, aborts and faults on one model, ``examples`` times over."""
    solo: dict[int, object] = {}

    def alone(seed: int):
        if seed not in solo:
            request = bench.request("x", random.Random(seed))
            solo[seed] = bench.solo([request])["x"]
        return solo[seed]

    adapter = bench.generator()._adapter
    row = adapter.make_cache()
    adapter.prefill_text([9] * 100, 0, row)
    page = sum(layer.nbytes for layer in row)

    class Machine(RuleBasedStateMachine):
        def __init__(self):
            super().__init__()
            self.generator = bench.generator(max_rows=4, prefill_step=48, mixed_step=32)
            self.limit = 0
            self.names: dict[int, str] = {}
            self.seeds: dict[int, int] = {}
            self.spoiled: set[int] = set()
            self.outcomes: dict[int, object] = {}

        @initialize(pages=st.sampled_from([0, 1.5, 3, 6]))
        def limit_memory(self, pages):
            self.limit = int(pages * page)
            self.generator = bench.generator(
                max_rows=4, prefill_step=48, mixed_step=32, max_cache_bytes=self.limit
            )

        @rule(
            name=st.sampled_from("abcdefgh"),
            seed=st.integers(0, 30),
            fault=st.sampled_from(["", "", "", "raise"]),
        )
        def insert(self, name, seed, fault):
            """Names come again, also while an earlier life of theirs goes on."""
            request = bench.request(name, random.Random(seed))
            if fault:
                request.logits_processors = [self.raise_at(seed % 6)]
            [uid] = self.generator.insert([request])
            if fault:
                self.spoiled.add(uid)
            self.names[uid], self.seeds[uid] = name, seed

        @staticmethod
        def raise_at(at):
            def processor(tokens, logits):
                if len(tokens) == at:
                    raise Boom
                return logits

            return processor

        @rule(steps=st.integers(1, 12))
        def run(self, steps):
            for _ in range(steps):
                for response in self.generator.next():
                    assert self.names[response.uid] == response.request_id
                    outcome = self.outcomes.setdefault(response.uid, bench.outcome())
                    outcome.add(response)

        @rule(name=st.sampled_from("abcdefgh"))
        def abort(self, name):
            self.generator.abort(name)
            self.spoiled |= {uid for uid, other in self.names.items() if other == name}

        @rule(data=st.data())
        def abort_one_life(self, data):
            if self.names:
                uid = data.draw(st.sampled_from(sorted(self.names)))
                self.generator.abort(uid)
                self.spoiled.add(uid)

        @rule(data=st.data())
        def fail_one_step(self, data):
            """The next decode step of some batch raises once, for no row's fault."""
            adapter = self.generator._adapter
            decode = type(adapter).decode

            def once(*args):
                del adapter.decode
                raise Boom

            adapter.decode = once
            self.run(1)
            adapter.__dict__.pop("decode", None)
            assert decode is type(adapter).decode
            if len(self.generator._decoding) == 0:
                # a batch of one row cannot be told from a guilty row
                self.spoiled |= set(self.seeds)

        @invariant()
        def limits_hold(self):
            stats = self.generator.stats()
            rows = stats["prefilling"] + stats["decoding"]
            assert rows <= 4
            assert rows < 2 or not self.limit or stats["cache_bytes"] <= self.limit

        def teardown(self):
            while self.generator.has_work():
                self.run(1)
            for uid, seed in self.seeds.items():
                outcome = self.outcomes[uid]
                assert outcome.last is not None
                if uid not in self.spoiled and outcome.reason != "error":
                    assert outcome == alone(seed)

    run_state_machine_as_test(
        Machine, settings=settings(max_examples=examples, stateful_step_count=20, deadline=None)
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_thousands_of_joins_and_leaves_leave_nothing_behind(bundled_bench):
    import gc
    import os

    import mlx.core as mx

    from mlxq_schemas import Sampling
    from mlxq_worker.engine.request import Request

    total = 2_000 if os.environ.get("MLXQ_TEST_SHORT") else 20_000
    generator = bundled_bench.generator(max_rows=16)
    rng = random.Random(0)
    done = sent = 0
    marks: list[tuple[int, int]] = []
    while done < total:
        while sent < total and sent - done < 24:
            ids = [rng.randrange(20, 1000) for _ in range(rng.randint(1, 12))]
            sampling = Sampling(max_tokens=rng.randint(1, 3))
            generator.insert([Request(str(sent), prompt_ids=ids, sampling=sampling)])
            sent += 1
        ended = sum(response.finished for response in generator.next())
        if ended and (done + ended) // (total // 10) > done // (total // 10):
            gc.collect()
            arrays = sum(isinstance(item, mx.array) for item in gc.get_objects())
            marks.append((mx.get_active_memory(), arrays))
        done += ended
    early, late = marks[1], marks[-2]
    assert late[0] <= early[0] * 1.1 + 1_000_000
    assert late[1] <= early[1] + 200
