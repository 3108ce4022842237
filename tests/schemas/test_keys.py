"""Key names: a contract that foreign readers rely on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxq_schemas import DEFAULT_QUEUE, GROUP, PRIORITIES, Keys
from mlxq_schemas.errors import InvalidJob

Q = "mlxq:{captions}"


def test_names() -> None:
    keys = Keys("captions")
    assert keys.all_jobs() == [f"{Q}:jobs:high", f"{Q}:jobs:normal", f"{Q}:jobs:low"]
    assert [keys.jobs(priority) for priority in PRIORITIES] == keys.all_jobs()
    assert keys.job("a") == f"{Q}:job:a"
    assert keys.blob("ff") == f"{Q}:blob:ff"
    assert keys.events("a") == f"{Q}:events:a"
    assert keys.tokens("a") == f"{Q}:tokens:a"
    assert keys.result("a") == f"{Q}:result:a"
    assert keys.results == f"{Q}:results"
    assert keys.dead == f"{Q}:dead"
    assert keys.delayed == f"{Q}:delayed"
    assert keys.keeper == f"{Q}:keeper"
    assert keys.control == f"{Q}:control"
    assert keys.workers == f"{Q}:workers"
    assert keys.worker("w") == f"{Q}:workers:w"
    assert (GROUP, DEFAULT_QUEUE) == ("workers", "captions")


@pytest.mark.parametrize("name", ["", "a b", "a}", "{a", "-a", "a\n", "a*", "ä", "x" * 129])
def test_names_that_cannot_stand_in_a_key(name: str) -> None:
    with pytest.raises(InvalidJob, match="is not a name"):
        Keys(name)


@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.:@-]{0,127}", fullmatch=True))
def test_every_key_of_a_queue_has_one_hash_tag(name: str) -> None:
    keys = Keys(name)
    for key in (keys.job(name), keys.results, keys.worker(name), *keys.all_jobs()):
        assert key[key.index("{") + 1 : key.index("}")] == name
