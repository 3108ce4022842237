"""Downloads, against a local server that misbehaves."""

from __future__ import annotations

import gzip
import ipaddress
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from mlxq_schemas.errors import (
    MediaError,
    MediaFetchFailed,
    MediaForbidden,
    MediaNotFound,
    MediaTooLarge,
)
from mlxq_worker.prepare.media import MediaPolicy
from mlxq_worker.prepare.media import http as media_http
from mlxq_worker.prepare.media.address import is_public
from mlxq_worker.prepare.media.http import fetch

LOCAL = MediaPolicy(allow_private_hosts=True, timeout=5.0, max_bytes=100_000)
Route = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """Answers by the route table; keeps quiet."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.close_connection = True
        with suppress(OSError):
            ROUTES[self.path.partition("?")[0]](self)

    def log_message(self, *args: object) -> None:
        """Nothing."""

    def answer(self, body: bytes = b"", status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content_Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def redirect(self, to: str, status: int = 302) -> None:
        self.answer(status=status, Location=to)


def endless(handler: Handler) -> None:
    handler.send_response(200)
    handler.end_headers()
    while True:
        handler.wfile.write(bytes(10_000))


def drip_body(handler: Handler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    for _ in range(1000):
        handler.wfile.write(b"x")
        time.sleep(0.05)


def drip_head(handler: Handler) -> None:
    for _ in range(1000):
        handler.wfile.write(b"H")
        time.sleep(0.05)


def chunked(handler: Handler, end: bytes = b"0\r\n\r\n") -> None:
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    handler.wfile.write(b"3\r\npic\r\n4\r\nture\r\n" + end)


def drip_open(handler: Handler) -> None:
    """No length: only the end of the connection ends it."""
    handler.send_response(200)
    handler.end_headers()
    for _ in range(1000):
        handler.wfile.write(b"x" * 50)
        time.sleep(0.05)


def drip_chunked(handler: Handler) -> None:
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    for _ in range(1000):
        handler.wfile.write(b"3\r\npic\r\n")
        time.sleep(0.05)


def drip_gzip(handler: Handler) -> None:
    """Whole members, one after the other, without end."""
    handler.send_response(200)
    handler.send_header("Content-Encoding", "gzip")
    handler.end_headers()
    for _ in range(1000):
        handler.wfile.write(gzip.compress(b"picture"))
        time.sleep(0.05)


def open_ended(handler: Handler, body: bytes, **headers: str) -> None:
    handler.send_response(200)
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)


PACKED = gzip.compress(b"picture")
ROUTES: dict[str, Route] = {
    "/drip-open": drip_open,
    "/drip-chunked": drip_chunked,
    "/drip-gzip": drip_gzip,
    "/open": lambda h: open_ended(h, b"picture"),
    "/open-gzip": lambda h: open_ended(h, PACKED, Content_Encoding="gzip"),
    "/two-members": lambda h: h.answer(
        gzip.compress(b"pict") + gzip.compress(b"ure"), Content_Encoding="gzip"
    ),
    "/half-member": lambda h: h.answer(
        gzip.compress(b"pict") + gzip.compress(b"ure")[:-3], Content_Encoding="gzip"
    ),
    "/after-gzip": lambda h: h.answer(PACKED + b"more", Content_Encoding="gzip"),
    "/open-half-gzip": lambda h: open_ended(h, PACKED[:-3], Content_Encoding="gzip"),
    "/empty-gzip": lambda h: h.answer(b"", Content_Encoding="gzip"),
    "/chunked-gzip": lambda h: h.answer(PACKED, Transfer_Encoding="gzip, chunked"),
    "/cut-chunks": lambda h: chunked(h, b""),
    "/long": lambda h: h.answer(b"picture and more", Content_Length="7"),
    "/longer": lambda h: h.answer(b"picture" + bytes(90_000), Content_Length="7"),
    "/nothing": lambda h: (
        h.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nmore") and None
    ),
    "/open-nothing": lambda h: open_ended(h, b""),
    "/half-head": lambda h: h.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Ty") and None,
    "/exact": lambda h: h.answer(bytes(100_000)),
    "/exact-open": lambda h: open_ended(h, bytes(100_000)),
    "/exact-gzip": lambda h: h.answer(gzip.compress(bytes(100_000)), Content_Encoding="gzip"),
    "/over-open": lambda h: open_ended(h, bytes(100_001)),
    "/over-gzip": lambda h: h.answer(gzip.compress(bytes(100_001)), Content_Encoding="gzip"),
    "/ok": lambda h: h.answer(b"picture"),
    "/a%20b": lambda h: h.answer(h.path.encode()),
    "/host": lambda h: h.answer(str(h.headers["Host"]).encode()),
    "/gzip": lambda h: h.answer(gzip.compress(b"picture"), Content_Encoding="gzip"),
    "/bomb": lambda h: h.answer(gzip.compress(bytes(50_000_000)), Content_Encoding="gzip"),
    "/half-gzip": lambda h: h.answer(gzip.compress(b"picture")[:-3], Content_Encoding="gzip"),
    "/br": lambda h: h.answer(b"?", Content_Encoding="br"),
    "/not-gzip": lambda h: h.answer(b"picture", Content_Encoding="gzip"),
    "/announced": lambda h: h.answer(b"x", Content_Length="99999999999"),
    "/short": lambda h: h.answer(b"picture", Content_Length="1000"),
    "/endless": endless,
    "/drip-body": drip_body,
    "/drip-head": drip_head,
    "/chunked": chunked,
    "/half-chunked": lambda h: chunked(h, b"9\r\n"),
    "/missing": lambda h: h.answer(status=404),
    "/broken": lambda h: h.answer(status=500),
    "/nonsense": lambda h: h.wfile.write(b"nonsense\r\n\r\n") and None,
    "/hop": lambda h: h.redirect("/ok"),
    "/hop2": lambda h: h.redirect("/hop", 307),
    "/loop": lambda h: h.redirect("/loop"),
    "/nowhere": lambda h: h.answer(status=301),
    "/to-file": lambda h: h.redirect("file:///etc/passwd"),
    "/to-user": lambda h: h.redirect("http://me:secret@127.0.0.1/"),
    "/to-metadata": lambda h: h.redirect("http://169.254.169.254/latest?key=secret"),
}


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    web = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=web.serve_forever, args=(0.05,))
    thread.start()
    yield f"http://127.0.0.1:{web.server_port}"
    web.shutdown()
    web.server_close()
    thread.join()


@pytest.mark.parametrize(
    "path",
    [
        *("/ok", "/ok?size=1", "/gzip", "/chunked", "/hop", "/hop2"),
        *("/open", "/open-gzip", "/two-members"),
    ],
)
def test_arrives(site: str, path: str) -> None:
    assert fetch(site + path, LOCAL) == b"picture"


@pytest.mark.parametrize("path", ["/exact", "/exact-open", "/exact-gzip"])
def test_as_large_as_allowed(site: str, path: str) -> None:
    assert fetch(site + path, LOCAL) == bytes(100_000)


def test_odd_characters_are_quoted(site: str) -> None:
    answer = fetch(site + "/a b?q=ü&x=%20#part", LOCAL)
    assert answer == b"/a%20b?q=%C3%BC&x=%20"


def test_host_header_names_the_port(site: str) -> None:
    assert fetch(site + "/host", LOCAL).decode() == site.removeprefix("http://")


@pytest.mark.parametrize(
    ("path", "kind", "message"),
    [
        ("/missing", MediaNotFound, "answered 404"),
        ("/broken", MediaFetchFailed, "answered 500"),
        ("/nonsense", MediaFetchFailed, "failed: BadStatusLine"),
        ("/short", MediaFetchFailed, "broke off after 7 bytes"),
        ("/half-chunked", MediaFetchFailed, "failed: IncompleteRead"),
        ("/half-gzip", MediaFetchFailed, "broke off"),
        ("/not-gzip", MediaFetchFailed, "failed: error"),
        ("/br", MediaFetchFailed, "packed as 'br'"),
        ("/half-member", MediaFetchFailed, "broke off"),
        ("/after-gzip", MediaFetchFailed, "failed: error"),
        ("/open-half-gzip", MediaFetchFailed, "broke off"),
        ("/empty-gzip", MediaFetchFailed, "broke off"),
        ("/chunked-gzip", MediaFetchFailed, "sent as 'gzip, chunked'"),
        ("/cut-chunks", MediaFetchFailed, "failed: IncompleteRead"),
        ("/long", MediaFetchFailed, "longer than the 7 bytes"),
        ("/longer", MediaFetchFailed, "longer than the 7 bytes"),
        ("/nothing", MediaFetchFailed, "longer than the 0 bytes"),
        ("/open-nothing", MediaFetchFailed, "before its first byte"),
        ("/half-head", MediaFetchFailed, "before its first byte"),
        ("/over-open", MediaTooLarge, "larger than the 100,000 bytes"),
        ("/over-gzip", MediaTooLarge, "larger than the 100,000 bytes"),
        ("/announced", MediaTooLarge, "larger than the 100,000 bytes"),
        ("/endless", MediaTooLarge, "larger than the 100,000 bytes"),
        ("/bomb", MediaTooLarge, "larger than the 100,000 bytes"),
        ("/loop", MediaFetchFailed, "redirects more than 3 times"),
        ("/nowhere", MediaFetchFailed, "redirects more than 3 times"),
        ("/to-file", MediaForbidden, "only http and https"),
        ("/to-user", MediaForbidden, "user name or password"),
    ],
)
def test_fails(site: str, path: str, kind: type[MediaError], message: str) -> None:
    with pytest.raises(kind, match=message) as caught:
        fetch(site + path + "?key=secret", LOCAL)
    assert type(caught.value) is kind
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "path", ["/drip-body", "/drip-head", "/drip-open", "/drip-chunked", "/drip-gzip"]
)
def test_slow_server_is_cut_off(site: str, path: str) -> None:
    start = time.monotonic()
    with pytest.raises(MediaFetchFailed, match=r"within 0\.3 s"):
        fetch(site + path, MediaPolicy(allow_private_hosts=True, timeout=0.3))
    assert time.monotonic() - start < 2.0


def test_slow_tls_handshake_is_cut_off() -> None:
    hasty = MediaPolicy(allow_private_hosts=True, timeout=0.3)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        port = mute.getsockname()[1]
        with pytest.raises(MediaFetchFailed, match=r"within 0\.3 s"):
            fetch(f"https://127.0.0.1:{port}/", hasty)


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with pytest.raises(MediaFetchFailed, match="refused"):
        fetch(f"http://127.0.0.1:{port}/", LOCAL)


def test_threads_leave_nothing_behind(site: str) -> None:
    before = threading.active_count()
    for _ in range(5):
        fetch(site + "/ok", LOCAL)
    time.sleep(0.1)
    assert threading.active_count() <= before + 1


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "[::1]", "0.0.0.0", "127.1", "2130706433", "[::ffff:127.0.0.1]"],
)
def test_private_hosts_are_refused(host: str) -> None:
    with pytest.raises((MediaForbidden, MediaFetchFailed)) as caught:
        fetch(f"http://{host}:1/", MediaPolicy())
    assert isinstance(caught.value, MediaForbidden) or "Name" in str(caught.value)


def test_each_hop_is_checked(site: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first host counts as public here; the redirect leads to a metadata address."""
    loopback = ipaddress.ip_address("127.0.0.1")
    monkeypatch.setattr(
        media_http, "is_public", lambda found: found == loopback or is_public(found)
    )
    policy = MediaPolicy(timeout=5.0)
    assert fetch(site + "/hop", policy) == b"picture"
    with pytest.raises(
        MediaForbidden, match=r"169\.254\.169\.254, which is not a public"
    ) as caught:
        fetch(site + "/to-metadata", policy)
    assert "secret" not in str(caught.value)


def test_the_checked_address_is_the_one_asked(site: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that answers with another address at every look-up is looked up once."""
    asked: list[str] = []

    def rebinding(host: str, port: int) -> list[ipaddress.IPv4Address]:
        asked.append(host)
        return [ipaddress.IPv4Address("127.0.0.1" if len(asked) == 1 else "10.0.0.1")]

    monkeypatch.setattr(media_http, "resolve", rebinding)
    port = site.rpartition(":")[2]
    assert fetch(f"http://rebind.example:{port}/ok", LOCAL) == b"picture"
    assert asked == ["rebind.example"]


def test_one_private_address_among_public_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    mixed = [ipaddress.ip_address(text) for text in ("93.184.216.34", "10.0.0.1")]
    monkeypatch.setattr(media_http, "resolve", lambda host, port: mixed)
    with pytest.raises(MediaForbidden):
        fetch("http://mixed.example/", MediaPolicy())


@pytest.mark.parametrize(
    "url",
    [
        *("http://", "http:///x", "http://h:99999/", "http://h:x/", "http://[::1"),
        *("http://" + "a" * 70, "http://h/\ud83d", "http://h/?\udcff", "http://\udcff/"),
    ],
)
def test_not_a_url(url: str) -> None:
    with pytest.raises(MediaForbidden):
        fetch(url, MediaPolicy())


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",
        "100.100.100.200", "168.63.129.16", "0.0.0.0", "224.0.0.1", "255.255.255.255",
        "::", "::1", "fe80::1", "fc00::1", "fd00:ec2::254", "ff02::1", "::ffff:10.0.0.1",
        "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "2002:a9fe:a9fe::",
        "::127.0.0.1", "::a9fe:a9fe", "::ffff:0:127.0.0.1", "64:ff9b:1::a9fe:a9fe",
        "2001:0:4136:e378:8000:63bf:3fff:fdd2", "2606:4700::5efe:10.0.0.1",
        "2606:4700::200:5efe:127.0.0.1", "2001:db8::1", "3fff::1", "100::1", "5f00::1",
        "192.0.0.9", "192.88.99.1", "198.18.0.1", "203.0.113.9", "240.0.0.1",
    ],
)  # fmt: skip
def test_not_public(text: str) -> None:
    assert not is_public(ipaddress.ip_address(text))


@pytest.mark.parametrize(
    "text",
    [
        *("93.184.216.34", "2606:2800:220:1::", "::ffff:93.184.216.34", "64:ff9b::8.8.8.8"),
        *("2002:808:808::1", "::ffff:0:8.8.8.8", "2606:4700::5efe:8.8.8.8"),
    ],
)
def test_public(text: str) -> None:
    assert is_public(ipaddress.ip_address(text))
