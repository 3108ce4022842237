"""The URL of a server, in the one form that producers and workers read.

::

    redis://[USER:PASSWORD@]HOST[:PORT][/DB]              rediss:// the same over TLS
    unix://[USER:PASSWORD@]/PATH/TO/SOCKET[?db=DB]
    redis+sentinel://[USER:PASSWORD@]HOST[:PORT],.../SERVICE[/DB]      rediss+sentinel://
    redis+cluster://[USER:PASSWORD@]HOST[:PORT],...                    rediss+cluster://

Options stand after ``?``: ``db``; with TLS ``ssl_ca_certs``, ``ssl_certfile``, ``ssl_keyfile``,
``ssl_check_hostname``, ``ssl_cert_reqs``; with Sentinel ``sentinel_username`` and
``sentinel_password`` for the sentinels' own login. User, password and values are percent-decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, NoReturn
from urllib.parse import parse_qsl, unquote, urlsplit

from mlxq_schemas.errors import ConfigError
from mlxq_schemas.plain import is_whole

Address = tuple[str, int]
"""Host and port."""
Kind = Literal["single", "unix", "sentinel", "cluster"]

SERVER_PORT: Final = 6379
SENTINEL_PORT: Final = 26379

_SCHEMES: Final[dict[str, tuple[Kind, bool]]] = {
    "redis": ("single", False),
    "rediss": ("single", True),
    "unix": ("unix", False),
    "redis+sentinel": ("sentinel", False),
    "rediss+sentinel": ("sentinel", True),
    "redis+cluster": ("cluster", False),
    "rediss+cluster": ("cluster", True),
}
FORMS: Final = (
    "write redis://HOST:PORT/DB, rediss://USER:PASSWORD@HOST:PORT/DB, unix:///PATH, "
    "redis+sentinel://HOST:PORT,HOST:PORT/SERVICE/DB or redis+cluster://HOST:PORT,HOST:PORT"
)


@dataclass(frozen=True)
class ServerUrl:
    """Where a server is and how to log in there.

    ``nodes``: the server, the sentinels, or some nodes of the cluster; empty for a socket at
    ``path``. ``service``: what the sentinels call the primary. ``options`` are settings of a
    connection as redis-py names them (``username``, ``password``, ``db``, ``ssl_*``);
    ``sentinel_options`` those of a connection to a sentinel. Neither shows in ``repr``.
    """

    kind: Kind
    nodes: tuple[Address, ...] = ()
    service: str = ""
    path: str = ""
    tls: bool = False
    options: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)
    sentinel_options: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)

    @property
    def where(self) -> str:
        """For messages: the place without user or password."""
        nodes = ",".join(f"{host}:{port}" for host, port in self.nodes)
        match self.kind:
            case "single":
                return nodes
            case "unix":
                return self.path
            case "sentinel":
                return f"{self.service} (sentinels {nodes})"
            case "cluster":
                return f"{nodes} (cluster)"


def parse_url(url: str) -> ServerUrl:
    """Read a URL. Raises :class:`ConfigError`, whose text repeats nothing of it: what is not
    percent-encoded in a password may land in any other part.
    """
    if not is_whole(url):
        _refuse("it holds bytes that are no UTF-8 text")
    try:
        parts = urlsplit(url)
        query = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        _refuse("it cannot be read")
    if parts.scheme not in _SCHEMES:
        _refuse("it begins with none of the known schemes")
    kind, tls = _SCHEMES[parts.scheme]
    login, _, hosts = parts.netloc.rpartition("@")
    options, sentinel_options = _options(query, kind, tls)
    options = {**_login(login), **options}
    path = unquote(parts.path)
    if kind == "unix":
        if hosts or len(path) < 2:
            _refuse("a socket is an absolute path, after three slashes")
        return ServerUrl(kind, path=path, options=options)
    nodes = _nodes(hosts, SENTINEL_PORT if kind == "sentinel" else SERVER_PORT)
    service, db = "", path.strip("/")
    if kind == "sentinel":
        service, _, db = db.partition("/")
    if db:
        options["db"] = _number(db)
    if kind == "sentinel" and not service:
        _refuse("the name of the sentinels' service is missing")
    if kind == "single" and len(nodes) > 1:
        _refuse("several servers need +sentinel or +cluster in the scheme")
    if kind == "cluster" and options.get("db"):
        _refuse("a cluster has no database but 0")
    tls_options = {name: value for name, value in options.items() if name.startswith("ssl_")}
    return ServerUrl(
        kind,
        nodes,
        service=service,
        tls=tls,
        options=options,
        sentinel_options={**tls_options, **sentinel_options},
    )


def _login(text: str) -> dict[str, Any]:
    username, _, password = text.partition(":")
    given = {"username": unquote(username), "password": unquote(password)}
    return {name: value for name, value in given.items() if value}


def _nodes(text: str, default_port: int) -> tuple[Address, ...]:
    nodes = tuple(_node(part, default_port) for part in text.split(","))
    return tuple(("127.0.0.1" if host == "" else host, port) for host, port in nodes)


def _node(text: str, default_port: int) -> Address:
    try:
        parts = urlsplit(f"//{text}")
        return parts.hostname or "", parts.port or default_port
    except ValueError:
        _refuse("a port is not a number from 1 to 65535")


def _options(
    query: list[tuple[str, str]], kind: Kind, tls: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    known: dict[str, Callable[[str], Any]] = {} if kind == "cluster" else {"db": _number}
    if tls:
        known |= _TLS
    if kind == "sentinel":
        known |= {"sentinel_username": str, "sentinel_password": str}
    options: dict[str, Any] = {}
    for name, value in query:
        if name not in known:
            _refuse(f"an option is not known here; known are: {', '.join(known) or 'none'}")
        options[name] = known[name](value)
    sentinel = {
        name.removeprefix("sentinel_"): options.pop(name)
        for name in ("sentinel_username", "sentinel_password")
        if name in options
    }
    return options, sentinel


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        _refuse("the database is not a number")
    return int(text)


def _file(text: str) -> str:
    if not Path(text).is_file():
        _refuse("ssl_ca_certs, ssl_certfile or ssl_keyfile names no file")
    return text


def _choice(text: str) -> str:
    if text not in ("required", "none"):
        _refuse("ssl_cert_reqs is required or none")
    return text


def _truth(text: str) -> bool:
    truths = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if text.lower() not in truths:
        _refuse("ssl_check_hostname is true or false")
    return truths[text.lower()]


_TLS: Final[dict[str, Callable[[str], Any]]] = {
    "ssl_ca_certs": _file,
    "ssl_certfile": _file,
    "ssl_keyfile": _file,
    "ssl_check_hostname": _truth,
    "ssl_cert_reqs": _choice,
}


def _refuse(why: str) -> NoReturn:
    raise ConfigError(
        f"the Redis URL is not valid ({why}): {FORMS}; "
        "in user and password percent-encode what is no letter or digit"
    )
