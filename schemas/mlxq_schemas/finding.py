"""Which node serves a queue: the primary that sentinels name, or the owner of a cluster slot.

All keys of a queue lie in one slot, so that there is always one such node, and a client needs
connections to it alone. The search is a generator that yields a question (a node and a command)
and is sent the reply, or the exception that came instead: blocking and asyncio clients drive it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from mlxq_schemas.url import Address, ServerUrl

ASK_TIMEOUT: Final = 2.0
"""Seconds for one sentinel or cluster node to answer: there are others."""

Question = tuple[Address, tuple[str, ...]]
Search = Generator[Question, Any, Address]


@dataclass
class Nodes:
    """Finds the node that serves a queue; ``slot`` is the queue's cluster slot.

    ``known`` holds nodes of the cluster that an earlier search heard of.
    """

    url: ServerUrl
    slot: int = 0
    known: list[Address] = field(default_factory=list[Address])

    @property
    def sharded(self) -> bool:
        """True if messages go by SPUBLISH: a cluster's PUBLISH would go to all of its nodes."""
        return self.url.kind == "cluster"

    @property
    def checks_role(self) -> bool:
        """True if a node must be asked whether it is a primary: sentinels may be behind."""
        return self.url.kind == "sentinel"

    def search(self) -> Search | None:
        """The search for the node, or None if it is the one in the URL."""
        match self.url.kind:
            case "sentinel":
                return primary(self.url.nodes, self.url.service)
            case "cluster":
                return slot_owner(self.url.nodes, self.slot, self.known)
            case _:
                return None

    def asking(self) -> dict[str, Any]:
        """Settings of a connection that only asks for the node."""
        url = self.url
        options = url.sentinel_options if url.kind == "sentinel" else url.options
        timeouts = {"socket_timeout": ASK_TIMEOUT, "socket_connect_timeout": ASK_TIMEOUT}
        return {**options, **timeouts}


def primary(sentinels: Sequence[Address], service: str) -> Search:
    """Ask the sentinels in turn. Raises the builtin :class:`ConnectionError` if none knows."""
    failures: list[str] = []
    for sentinel in sentinels:
        reply = yield sentinel, ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", service)
        if isinstance(reply, list | tuple) and len(reply) == 2:
            return _text(reply[0]), int(reply[1])
        failures.append(_failure(sentinel, reply, f"knows no service {service}"))
    raise ConnectionError("no sentinel names a primary: " + "; ".join(failures))


def slot_owner(nodes: Iterable[Address], slot: int, known: list[Address]) -> Search:
    """Ask nodes in turn, those in ``known`` too; the nodes that the first answer names are put
    there for the next search. Raises the builtin :class:`ConnectionError` if none knows.
    """
    failures: list[str] = []
    for node in dict.fromkeys([*nodes, *known]):
        reply = yield node, ("CLUSTER", "SLOTS")
        owner = None
        if isinstance(reply, list | tuple):
            rows = [(int(first), int(last), _members(row, node)) for first, last, *row in reply]
            known[:] = dict.fromkeys(member for _, _, members in rows for member in members)
            owner = next((m[0] for first, last, m in rows if first <= slot <= last), None)
        if owner is not None:
            return owner
        failures.append(_failure(node, reply, f"knows no owner of slot {slot}"))
    raise ConnectionError("no node of the cluster helps: " + "; ".join(failures))


def _members(rows: Sequence[Any], asked: Address) -> list[Address]:
    """The addresses of a slot range's nodes, the primary first; one without a host is where we
    asked.
    """
    return [(_text(row[0]) if row[0] else asked[0], int(row[1])) for row in rows]


def _failure(node: Address, reply: object, otherwise: str) -> str:
    why = str(reply).rstrip(".") if isinstance(reply, Exception) else otherwise
    return f"{node[0]}:{node[1]}: {why}"


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
