"""The URL of a server: every form, and errors that give nothing away."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlxq_schemas.errors import ConfigError
from mlxq_schemas.url import parse_url


def test_one_server() -> None:
    url = parse_url("redis://ann:s%40cret@host:7000/3")
    assert (url.kind, url.nodes, url.tls) == ("single", (("host", 7000),), False)
    assert url.options == {"username": "ann", "password": "s@cret", "db": 3}
    assert url.where == "host:7000"
    assert "s@cret" not in repr(url)


@pytest.mark.parametrize(
    ("text", "nodes", "options"),
    [
        ("redis://", (("127.0.0.1", 6379),), {}),
        ("redis://host", (("host", 6379),), {}),
        ("redis://:pw@host/", (("host", 6379),), {"password": "pw"}),
        ("redis://host?db=2", (("host", 6379),), {"db": 2}),
        ("redis://[::1]:7000/0", (("::1", 7000),), {"db": 0}),
    ],
)
def test_what_may_be_left_out(
    text: str, nodes: tuple[tuple[str, int]], options: dict[str, object]
) -> None:
    url = parse_url(text)
    assert (url.nodes, url.options) == (nodes, options)


def test_a_socket() -> None:
    url = parse_url("unix://ann:pw@/run/my%20redis.sock?db=1")
    assert (url.kind, url.path, url.where) == ("unix", "/run/my redis.sock", "/run/my redis.sock")
    assert url.options == {"username": "ann", "password": "pw", "db": 1}


def test_sentinels(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.touch()
    text = f"rediss+sentinel://ann:pw@a,b:7000/main/4?ssl_ca_certs={ca}&sentinel_password=other"
    url = parse_url(text)
    assert (url.kind, url.service, url.tls) == ("sentinel", "main", True)
    assert url.nodes == (("a", 26379), ("b", 7000))
    tls = {"ssl_ca_certs": str(ca)}
    assert url.options == {"username": "ann", "password": "pw", "db": 4, **tls}
    assert url.sentinel_options == {"password": "other", **tls}
    assert url.where == "main (sentinels a:26379,b:7000)"
    assert "other" not in repr(url)


def test_a_cluster() -> None:
    url = parse_url("redis+cluster://pw-less@a:7000,b")
    assert (url.kind, url.nodes) == ("cluster", (("a", 7000), ("b", 6379)))
    assert url.options == {"username": "pw-less"}


def test_tls_settings() -> None:
    url = parse_url("rediss://host?ssl_check_hostname=False&ssl_cert_reqs=none")
    assert url.tls
    assert url.options == {"ssl_check_hostname": False, "ssl_cert_reqs": "none"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("redis://h\udcff", "no UTF-8"),
        ("", "scheme"),
        ("http://geheim@host", "scheme"),
        ("host:6379", "scheme"),
        ("redis://u:geheim@host:x/0", "port"),
        ("redis://u:geheim@host:99999/0", "port"),
        ("redis://u:ge/heim@host", "port"),
        ("redis://u:geheim@host/geheim", "database"),
        ("redis://u:geheim@a,b", r"\+sentinel or \+cluster"),
        ("redis://u@host?geheim=1", "option"),
        ("redis://u@host?geheim", "read"),
        ("redis://host?ssl_ca_certs=/geheim", "option"),
        ("rediss://host?ssl_ca_certs=/geheim", "no file"),
        ("rediss://host?ssl_check_hostname=geheim", "ssl_check_hostname"),
        ("rediss://host?ssl_cert_reqs=geheim", "ssl_cert_reqs"),
        ("unix://geheim/path", "three slashes"),
        ("unix://", "three slashes"),
        ("redis+sentinel://u:geheim@a,b", "service"),
        ("redis+cluster://u:geheim@a/1", "database but 0"),
        ("redis+cluster://u:geheim@a?db=1", "option"),
        ("redis://[geheim", "read"),
    ],
)
def test_bad_urls_are_refused_without_repeating_them(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        parse_url(text)
    assert "heim" not in caught.value.message
    assert "redis+sentinel://HOST" in caught.value.message
