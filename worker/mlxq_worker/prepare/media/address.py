"""Which network addresses a download may reach."""

from __future__ import annotations

import ipaddress
import socket
from typing import Final

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

CLOUD_SERVICES: Final = "168.63.129.16/32"
"""A metadata service on an address that looks public."""

NOT_PUBLIC_4: Final = tuple(
    ipaddress.IPv4Network(block)
    for block in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16"),
        *("172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16"),
        *("198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
        CLOUD_SERVICES,
    )
)
"""IANA's registry of special-purpose IPv4 addresses, and multicast. Told here, since what Python
calls global differs by its version."""

PUBLIC_6: Final = ipaddress.IPv6Network("2000::/3")
"""All that IANA has given out as global unicast."""
NOT_PUBLIC_6: Final = tuple(map(ipaddress.IPv6Network, ("2001::/23", "2001:db8::/32", "3fff::/20")))
"""Of these the special-purpose ones: protocol assignments (Teredo among them), documentation."""

_WRAPPED_LAST: Final = tuple(
    map(ipaddress.IPv6Network, ("::/96", "::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b::/96"))
)
"""Compatible, mapped, translated, and NAT64: the last 32 bits are an IPv4 address."""
_SIX_TO_FOUR: Final = ipaddress.IPv6Network("2002::/16")
_ISATAP: Final = frozenset({0x00005EFE, 0x02005EFE})
"""The third quarter of an address whose last one is an IPv4 address."""


def is_public(address: Address) -> bool:
    """False for loopback, private, link-local, multicast, reserved and metadata addresses.

    An IPv6 address that wraps an IPv4 one, in any of the ways there are, is judged by that.
    """
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in block for block in NOT_PUBLIC_4)
    number = int(address)
    if any(address in block for block in _WRAPPED_LAST):
        return is_public(ipaddress.IPv4Address(number & 0xFFFFFFFF))
    if address in _SIX_TO_FOUR:
        return is_public(ipaddress.IPv4Address(number >> 80 & 0xFFFFFFFF))
    if number >> 32 & 0xFFFFFFFF in _ISATAP and not is_public(
        ipaddress.IPv4Address(number & 0xFFFFFFFF)
    ):
        return False
    return address in PUBLIC_6 and not any(address in block for block in NOT_PUBLIC_6)


def resolve(host: str, port: int) -> list[Address]:
    """The addresses of a host, in the order in which to try them. Raises ``OSError``."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    # A scope ("fe80::1%eth0") names an interface, not another address.
    texts = (str(entry[4][0]).partition("%")[0] for entry in found)
    return [ipaddress.ip_address(text) for text in dict.fromkeys(texts)]
