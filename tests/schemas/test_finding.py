"""The search for the node that serves a queue, question by question."""

from __future__ import annotations

from typing import Any

import pytest

from mlxq_schemas.finding import Nodes, Search, primary, slot_owner
from mlxq_schemas.url import Address, parse_url

A, B, C = ("a", 1), ("b", 2), ("c", 3)
SLOTS: list[Any] = [
    [0, 99, [b"b", 2, b"id-b"], [b"d", 4, b"id-d"]],
    [100, 16383, ["c", 3, "id-c", []]],
]


def search(steps: Search, replies: dict[Address, Any]) -> tuple[Address, list[Address]]:
    """The node found, and those asked for it, in order; who is not in ``replies`` is down."""
    asked: list[Address] = []
    try:
        address, _ = next(steps)
        while True:
            asked.append(address)
            address, _ = steps.send(replies.get(address, OSError("down")))
    except StopIteration as found:
        return found.value, asked


def test_the_first_sentinel_that_knows_is_believed() -> None:
    replies = {B: None, C: [b"10.0.0.7", b"6379"]}
    assert search(primary([A, B, C], "main"), replies) == (("10.0.0.7", 6379), [A, B, C])


def test_no_sentinel_that_knows() -> None:
    with pytest.raises(ConnectionError, match="a:1: down; b:2: knows no service main"):
        search(primary([A, B], "main"), {B: None})


@pytest.mark.parametrize(("slot", "owner"), [(0, B), (99, B), (100, C), (16383, C)])
def test_the_owner_of_a_slot(slot: int, owner: Address) -> None:
    assert search(slot_owner([A], slot, []), {A: SLOTS}) == (owner, [A])


def test_nodes_heard_of_earlier_are_asked_when_the_given_are_down() -> None:
    nodes = Nodes(parse_url("redis+cluster://a:1"), slot=7)
    for up, asked in ((A, [A]), (("d", 4), [A, B, ("d", 4)])):
        steps = nodes.search()
        assert steps is not None
        assert search(steps, {up: SLOTS}) == (B, asked)


def test_a_node_without_a_host_is_where_we_asked() -> None:
    unnamed = [[0, 16383, [None, 7, b"id"]]]
    assert search(slot_owner([A], 5, []), {A: unnamed}) == (("a", 7), [A])


def test_a_cluster_without_an_owner() -> None:
    with pytest.raises(ConnectionError, match="a:1: knows no owner of slot 5"):
        search(slot_owner([A], 5, []), {A: []})


def test_one_server_is_not_searched() -> None:
    assert Nodes(parse_url("redis://a")).search() is None
