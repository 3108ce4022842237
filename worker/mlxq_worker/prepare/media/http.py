"""Downloads from hosts that nobody vouches for: bounded in bytes, time, hops and reach.

Plain ``http.client``: the connection goes to the very address that was checked, so that a name
cannot be pointed elsewhere between check and use. Proxies named in the environment are not
used, for the same reason.
"""

from __future__ import annotations

import errno
import http.client
import socket
import ssl
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, urljoin, urlsplit

from mlxq_schemas.errors import MediaFetchFailed, MediaForbidden, MediaNotFound, MediaTooLarge
from mlxq_worker.prepare.media.address import is_public, resolve
from mlxq_worker.prepare.media.naming import shown
from mlxq_worker.prepare.media.policy import MediaPolicy

CHUNK: Final = 64 * 1024
PATH_CHARS: Final = "/%:@!$&'()*+,;=~"
REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
HEADERS: Final = {"User-Agent": "mlxq", "Accept": "*/*", "Accept-Encoding": "identity"}


def fetch(url: str, policy: MediaPolicy) -> bytes:
    """The bytes at an http(s) URL.

    Raises :class:`MediaNotFound`, :class:`MediaForbidden`, :class:`MediaTooLarge` or
    :class:`MediaFetchFailed`.
    """
    what = shown(url)
    deadline = time.monotonic() + policy.timeout
    for _ in range(policy.max_redirects + 1):
        with closing(_Exchange(_parse(url), what, policy, deadline)) as exchange:
            try:
                answer = exchange.ask()
                if answer.status not in REDIRECTS:
                    body = _body(answer, what, policy, exchange.has_more)
                    exchange.check()
                    return body
                url = urljoin(url, answer.getheader("Location", ""))
            except (OSError, http.client.HTTPException, zlib.error) as error:
                raise _failed(what, error, policy, deadline) from error
    raise MediaFetchFailed(f"{what} redirects more than {policy.max_redirects} times")


def _failed(what: str, error: Exception, policy: MediaPolicy, deadline: float) -> MediaFetchFailed:
    if isinstance(error, TimeoutError) or time.monotonic() >= deadline:
        return MediaFetchFailed(f"{what} did not arrive within {policy.timeout:g} s")
    reason = getattr(error, "strerror", None) or type(error).__name__
    return MediaFetchFailed(f"the download of {what} failed: {reason}")


@dataclass(frozen=True)
class _Target:
    """Where one request goes. ``host`` is plain ASCII."""

    secure: bool
    host: str
    port: int | None
    path: str

    @property
    def host_header(self) -> str:
        name = f"[{self.host}]" if ":" in self.host else self.host
        return name if self.port is None else f"{name}:{self.port}"


def _parse(url: str) -> _Target:
    """Take a URL apart, refusing what is not a plain http(s) one; also for each redirect."""
    what = shown(url)
    try:
        parts = urlsplit(url)
        port = parts.port
        host = parts.hostname or ""
        host = host if ":" in host else host.encode("idna").decode()
        path = quote(parts.path or "/", safe=PATH_CHARS)
        query = quote(parts.query, safe=PATH_CHARS + "?")
    except ValueError as error:
        raise MediaForbidden(f"{what} is not a valid URL") from error
    if parts.scheme not in {"http", "https"} or not host:
        raise MediaForbidden(f"a download may not lead to {what}: only http and https are allowed")
    if parts.username is not None or parts.password is not None:
        raise MediaForbidden(f"{what} carries a user name or password: send the bytes instead")
    return _Target(parts.scheme == "https", host, port, f"{path}?{query}" if query else path)


class _Exchange:
    """One request to one host, cut off at the deadline whatever the other side does."""

    def __init__(self, target: _Target, what: str, policy: MediaPolicy, deadline: float) -> None:
        self._target = target
        self._what = what
        self._policy = policy
        self._deadline = deadline
        self._socket: socket.socket | None = None
        self._answer: http.client.HTTPResponse | None = None
        self._late = False
        self._watchdog: threading.Timer | None = None

    def ask(self) -> http.client.HTTPResponse:
        """Connect, send the request, read the head of the answer."""
        self._socket = self._connect()
        # A server that sends one byte at a time never runs into the socket's own timeout.
        self._watchdog = threading.Timer(self._left(), self._cut_off)
        self._watchdog.daemon = True
        self._watchdog.start()
        if isinstance(self._socket, ssl.SSLSocket):
            self._socket.do_handshake()
        connection = http.client.HTTPConnection(self._target.host)
        connection.sock = self._socket
        headers = {**HEADERS, "Host": self._target.host_header}
        connection.request("GET", self._target.path, headers=headers)
        self._answer = connection.getresponse()
        self.check()
        return self._answer

    def check(self) -> None:
        """Raise ``TimeoutError`` if the exchange was cut off, which looks like an orderly end."""
        if self._late:
            raise TimeoutError

    def has_more(self) -> bool:
        """True if bytes are there beyond those that were read; does not wait for any."""
        if self._socket is None or self._answer is None:
            return False
        self._socket.settimeout(0)
        try:
            return bool(self._answer.fp.peek(1))
        except OSError:  # nothing yet, in the words of a TLS socket
            return False

    def _connect(self) -> socket.socket:
        target = self._target
        port = target.port or (443 if target.secure else 80)
        addresses = resolve(target.host, port)
        if not self._policy.allow_private_hosts and not all(map(is_public, addresses)):
            raise MediaForbidden(
                f"{self._what} leads to {target.host}, which is not a public address: start the "
                "worker with --allow-private-hosts, or send the bytes"
            )
        plain = self._first_to_answer([str(address) for address in addresses], port)
        if not target.secure:
            return plain
        context = ssl.create_default_context()
        return context.wrap_socket(
            plain, server_hostname=target.host, do_handshake_on_connect=False
        )

    def _first_to_answer(self, addresses: list[str], port: int) -> socket.socket:
        refusal: OSError = OSError("the host has no address")
        for address in addresses:
            try:
                return socket.create_connection((address, port), timeout=self._left())
            except OSError as error:
                refusal = error
        raise refusal

    def _left(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def _cut_off(self) -> None:
        self._late = True
        if self._socket is not None:
            with suppress(OSError):
                # The plain shutdown: an SSLSocket's own would pull the TLS state from
                # under the thread that reads.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Give everything back; safe at any stage."""
        if self._watchdog is not None:
            self._watchdog.cancel()
        if self._answer is not None:
            self._answer.close()
        if self._socket is not None:
            self._socket.close()


def _body(
    answer: http.client.HTTPResponse,
    what: str,
    policy: MediaPolicy,
    has_more: Callable[[], bool],
) -> bytes:
    if answer.status in {404, 410}:
        raise MediaNotFound(f"{what} does not exist: the server answered {answer.status}")
    if answer.status != 200:
        raise MediaFetchFailed(f"{what}: the server answered {answer.status}")
    unpack = _unpacker(answer, what)
    announced = answer.length
    if announced is not None and announced > policy.max_bytes:
        raise _too_large(what, policy)
    received, body = 0, bytearray()
    for piece in _pieces(answer, announced):
        received += len(piece)
        body += unpack.feed(piece, policy.max_bytes + 1 - len(body)) if unpack else piece
        if max(received, len(body)) > policy.max_bytes:
            raise _too_large(what, policy)
    # http.client reports a body that broke off only where it is chunked, and takes a head that
    # broke off for a whole one.
    promised = announced is not None or answer.chunked
    if received != (announced or received) or (unpack and not unpack.whole):
        raise ConnectionResetError(errno.ECONNRESET, f"it broke off after {received:,} bytes")
    if not received and not promised:
        raise ConnectionResetError(errno.ECONNRESET, "it broke off before its first byte")
    if announced is not None and has_more():
        raise ConnectionResetError(
            errno.ECONNRESET, f"it is longer than the {announced:,} bytes that its server announced"
        )
    return bytes(body)


def _pieces(answer: http.client.HTTPResponse, announced: int | None) -> Iterator[bytes]:
    """The body as it comes, of ``announced`` bytes if the server said how many."""
    if answer.chunked:
        while piece := answer.read1(CHUNK):
            yield piece
        return
    # Not by the response, which closes the connection with the last byte: more may follow.
    left = announced
    while left is None or left > 0:
        piece = answer.fp.read1(CHUNK if left is None else min(left, CHUNK))
        if not piece:
            return
        yield piece
        left = None if left is None else left - len(piece)


def _too_large(what: str, policy: MediaPolicy) -> MediaTooLarge:
    return MediaTooLarge(f"{what} is larger than the {policy.max_bytes:,} bytes allowed")


class _Unpacker:
    """What was packed by gzip, of one member or several, or by zlib."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)

    @property
    def whole(self) -> bool:
        """True at the end of a member."""
        return self._member.eof

    def feed(self, data: bytes, limit: int) -> bytes:
        """What ``data`` unpacks to, ``limit`` bytes of it at most."""
        out = bytearray()
        while data and len(out) < limit:
            if self._member.eof:
                self._member = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
            out += self._member.decompress(data, limit - len(out))
            data = self._member.unused_data or self._member.unconsumed_tail
        return bytes(out)


def _unpacker(answer: http.client.HTTPResponse, what: str) -> _Unpacker | None:
    """Some servers compress although asked not to."""
    sent_as = answer.getheader("Transfer-Encoding", "identity").strip().lower()
    if sent_as not in {"", "identity", "chunked"}:
        raise MediaFetchFailed(f"{what} is sent as {sent_as[:20]!r}, which is not understood")
    match answer.getheader("Content-Encoding", "identity").strip().lower():
        case "" | "identity":
            return None
        case "gzip" | "x-gzip" | "deflate":
            return _Unpacker()
        case other:
            raise MediaFetchFailed(f"{what} is packed as {other[:20]!r}, which is not understood")
