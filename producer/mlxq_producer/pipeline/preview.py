"""What a run would do, without doing it."""

from __future__ import annotations

from collections.abc import Iterator

from mlxq_producer.pipeline.judge import Judge, Verdict
from mlxq_producer.pipeline.ledger import Ledger
from mlxq_producer.pipeline.pictures import PassedOver
from mlxq_producer.pipeline.plan import Plan


def preview(plan: Plan, over: PassedOver | None = None) -> Iterator[Verdict]:
    """The verdict on each item; counts in ``over`` the files that are none. Nothing is sent, and
    nothing is written anywhere.

    A copy of the ledger in memory stands for the real one.
    """
    plan.check()
    beside, _ = plan.sinks()
    ledger = Ledger.look(plan.ledger_path())
    try:
        if plan.existing == "overwrite" and not plan.retry_failed:
            ledger.clear()
        judge = Judge(plan, ledger, beside)
        planned: set[str] = set()
        for item in plan.choice.of(plan.sources.items(over)):
            found = judge.judge(item)
            if found.action == "caption" and found.key in planned:
                yield Verdict("reuse", found.item, found.prompt, found.key)
                continue
            if found.action == "caption":
                planned.add(found.key)
                ledger.begin(found.item.name, found.stamp, found.seen, found.digest, judge.visit)
            yield found
    finally:
        ledger.close()
