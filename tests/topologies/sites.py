"""A site: some servers that together hold queues, and the URLs by which each party gets there.

On every site all parties log in with the rights that ``docs/operations.md`` gives them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import redis
import trustme
from redis.crc import key_slot

from mlxq_producer.connection import connect
from mlxq_schemas import DEFAULT_QUEUE, Keys
from topologies.process import ADMIN, Server, free_port
from topologies.programs import Program, missing

MANUAL = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")
PARTIES = ("producer", "reader", "worker")
SENTINEL_PASSWORD = "sentinel-secret"
SLOTS = 16384
NODES = 3
PATIENCE = 60.0


@dataclass
class Site:
    """``servers``: those with data, the primaries first; ``form`` is a URL with a place for the
    login.
    """

    form: str
    servers: list[Server] = field(default_factory=list[Server])

    def url(self, party: str) -> str:
        password = ADMIN["password"] if party == "admin" else f"{party}-secret"
        return self.form.format(login=f"{party}:{password}")

    def admin(self, queue: str = DEFAULT_QUEUE) -> redis.Redis:
        """A client that may do everything, of the node that serves a queue."""
        return connect(self.url("admin"), queue)

    def primary(self, queue: str = DEFAULT_QUEUE) -> Server:
        """The server that holds a queue now."""
        with self.admin(queue) as client:
            pid = client.info("server")["process_id"]
        return next(server for server in self.servers if server.pid == pid)

    def clear(self) -> None:
        for server in self.servers:
            with server.client() as client:
                if client.role()[0] == b"master":
                    client.flushall()


def acl(program: Program, kind: str = "") -> str:
    """The users of the manual, with a password each; ``kind``: "sentinel" or "cluster"."""
    lines = {line.split()[1]: line for line in re.findall(r"^user .*$", MANUAL, re.MULTILINE)}
    default = lines.pop("default")
    assert set(lines) == set(PARTIES), "docs/operations.md has one line for each party"
    more = dict(re.findall(r"^- (\w+): add `([^`]*)`", MANUAL, re.MULTILINE))
    found = [f"{default}\n"]
    for party, line in lines.items():
        words = line.replace(">CHANGE-ME", f">{party}-secret")
        if program.version < (7, 0):
            words = words.replace("%R~", "~")  # as the manual says
        found.append(f"{words} {more[kind] if kind else ''}\n")
    return "".join(found)


def wait_until(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while True:
        try:
            if condition():
                return
        except redis.RedisError:
            pass
        assert time.monotonic() < end, f"{what} did not happen within {PATIENCE:g} s"
        time.sleep(0.05)


@contextmanager
def single(program: Program, folder: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        server = _start(stack, program, folder, acl(program))
        yield Site(f"redis://{{login}}@127.0.0.1:{server.port}/3", [server])


@contextmanager
def kept(program: Program, folder: Path) -> Iterator[Site]:
    """A server that has each write on disk before it answers."""
    disk = {"appendonly": "yes", "appendfsync": "always"}
    with ExitStack() as stack:
        server = _start(stack, program, folder, acl(program), **disk)
        yield Site(f"redis://{{login}}@127.0.0.1:{server.port}", [server])


@contextmanager
def unix(program: Program, folder: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        path = folder / "s"
        server = _start(stack, program, folder, acl(program), unixsocket=str(path))
        yield Site(f"unix://{{login}}@{path}", [server])


@contextmanager
def tls(program: Program, folder: Path) -> Iterator[Site]:
    if not program.tls:
        missing(f"{program.path} is built without TLS")
    authority, names = trustme.CA(), ("127.0.0.1", "localhost")
    certificate = authority.issue_cert(*names)
    ca, key, chain = (str(folder / name) for name in ("ca.pem", "key.pem", "chain.pem"))
    authority.cert_pem.write_to_path(ca)
    certificate.private_key_pem.write_to_path(key)
    certificate.cert_chain_pems[0].write_to_path(chain)
    options = {"tls_ca_cert_file": ca, "tls_key_file": key, "tls_cert_file": chain}
    with ExitStack() as stack:
        server = _start(
            stack,
            program,
            folder,
            acl(program),
            client_tls={"ssl_ca_certs": ca},
            tls_auth_clients="no",
            **options,
        )
        yield Site(f"rediss://{{login}}@localhost:{server.port}/0?ssl_ca_certs={ca}", [server])


@contextmanager
def sentinel(program: Program, folder: Path) -> Iterator[Site]:
    """A primary, a replica, a sentinel that lives, and one that does not."""
    with ExitStack() as stack:
        users = acl(program, "sentinel")
        first = _start(stack, program, folder, users)
        second = _start(stack, program, folder, users, replicaof=f"127.0.0.1 {first.port}")
        wait_until(lambda: link_up(second), "the replication")
        # In this order: what follows "monitor" is about the service that it names.
        watch = {
            "requirepass": SENTINEL_PASSWORD,
            "sentinel monitor main": f"127.0.0.1 {first.port} 1",
            "sentinel auth-user main": ADMIN["username"],
            "sentinel auth-pass main": ADMIN["password"],
            "sentinel down-after-milliseconds main": "500",
            "sentinel failover-timeout main": "3000",
        }
        watcher = Server(program.path, folder, watch, sentinel_password=SENTINEL_PASSWORD)
        stack.callback(watcher.stop)
        places = f"127.0.0.1:{free_port()},127.0.0.1:{watcher.port}"
        yield Site(
            f"redis+sentinel://{{login}}@{places}/main/2?sentinel_password={SENTINEL_PASSWORD}",
            [first, second],
        )


@contextmanager
def cluster(program: Program, folder: Path) -> Iterator[Site]:
    """Three primaries, and a replica of the one that holds the default queue."""
    if program.version < (7, 0):
        pytest.skip(f"a cluster needs 7.0; {program.path} is older")
    with ExitStack() as stack:
        users = acl(program, "cluster")
        nodes: list[Server] = []
        for number in range(NODES + 1):
            node = _start(
                stack,
                program,
                folder,
                users,
                cluster_enabled="yes",
                cluster_port=str(free_port()),
                cluster_node_timeout="1500",
                appendonly="yes" if number < NODES else "no",
            )
            nodes.append(node)
        _join(nodes)
        yield Site(f"redis+cluster://{{login}}@127.0.0.1:{nodes[2].port}", nodes)


def owner(queue: str = DEFAULT_QUEUE) -> int:
    """Which of the three nodes holds a queue at first."""
    return key_slot(Keys(queue).prefix.encode()) * NODES // SLOTS


def _join(nodes: list[Server]) -> None:
    clients = [node.client() for node in nodes]
    for number, client in enumerate(clients):
        client.execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
    slots: list[list[int]] = [[] for _ in range(NODES)]
    for slot in range(SLOTS):
        slots[slot * NODES // SLOTS].append(slot)
    for client, own in zip(clients, slots, strict=False):
        client.execute_command("CLUSTER ADDSLOTSRANGE", own[0], own[-1])
    for node in nodes[1:]:
        bus = node.client().config_get("cluster-port")["cluster-port"]
        clients[0].execute_command("CLUSTER MEET", "127.0.0.1", node.port, bus)
    wait_until(lambda: all(_knows_all(client) for client in clients), "the cluster")
    of = clients[owner()].execute_command("CLUSTER MYID")
    clients[NODES].execute_command("CLUSTER REPLICATE", of)
    wait_until(lambda: link_up(nodes[NODES]), "the replication")
    wait_until(lambda: all(_is_ok(client) for client in clients), "a cluster that serves")
    for client in clients:
        client.close()


def _knows_all(client: redis.Redis) -> bool:
    info = _cluster_info(client)
    return info["cluster_known_nodes"] == str(NODES + 1) and "handshake" not in str(
        client.execute_command("CLUSTER NODES")
    )


def _is_ok(client: redis.Redis) -> bool:
    info = _cluster_info(client)
    return info["cluster_state"] == "ok" and info["cluster_size"] == str(NODES)


def _cluster_info(client: redis.Redis) -> dict[str, str]:
    reply = client.execute_command("CLUSTER INFO")
    if isinstance(reply, dict):
        return reply
    return dict(line.split(":") for line in reply.decode().split())


def link_up(replica: Server) -> bool:
    with replica.client() as client:
        return client.info("replication").get("master_link_status") == "up"


def _start(
    stack: ExitStack,
    program: Program,
    folder: Path,
    users: str,
    *,
    client_tls: dict[str, str] | None = None,
    **options: str,
) -> Server:
    named = {name.replace("_", "-"): value for name, value in options.items()}
    named = {"repl-diskless-sync": "yes", "repl-diskless-sync-delay": "0", **named}
    server = Server(program.path, folder, named, acl=users, tls=client_tls)
    stack.callback(server.stop)
    return server


BUILDERS = {
    "single": single,
    "kept": kept,
    "unix": unix,
    "tls": tls,
    "sentinel": sentinel,
    "cluster": cluster,
}
