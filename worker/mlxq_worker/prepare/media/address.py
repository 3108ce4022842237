"""Which network addresses a download may reach."""

from __future__ import annotations

import ipaddress
import socket
from typing import Final

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
CLOUD_SERVICES: Final = frozenset({ipaddress.IPv4Address("168.63.129.16")})
"""Metadata services on addresses that look public."""


def is_public(address: Address) -> bool:
    """False for loopback, private, link-local, multicast, reserved and metadata addresses.

    An IPv6 address that wraps an IPv4 one (mapped, 6to4, Teredo, NAT64) is judged by both.
    """
    if isinstance(address, ipaddress.IPv6Address):
        inner = _wrapped(address)
        if inner is not None:
            return is_public(inner)
    return address.is_global and not address.is_multicast and address not in CLOUD_SERVICES


def _wrapped(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    if address in NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    if address.teredo is not None:
        return address.teredo[1]
    return address.ipv4_mapped or address.sixtofour


def resolve(host: str, port: int) -> list[Address]:
    """The addresses of a host, in the order in which to try them. Raises ``OSError``."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    # A scope ("fe80::1%eth0") names an interface, not another address.
    texts = (str(entry[4][0]).partition("%")[0] for entry in found)
    return [ipaddress.ip_address(text) for text in dict.fromkeys(texts)]
