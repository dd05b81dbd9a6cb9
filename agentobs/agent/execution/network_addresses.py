"""The addresses that an HTTP hook may connect to: the public internet, and this machine.

An IPv6 address is checked together with any IPv4 address embedded in it. Every address that is not known to be public
is refused: private networks, link-local networks with the metadata services of clouds, shared provider networks, and
reserved ranges.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence

from agentobs.agent.execution.daemon_threads import in_thread

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the addresses of a host name (and port), as strings."""

_NOT_PUBLIC_4 = tuple(
    ipaddress.IPv4Network(network)
    for network in (
        "0.0.0.0/8",  # this host; connecting to it reaches the machine itself
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # shared by a provider's customers (CGNAT); contains Alibaba's metadata service
        "127.0.0.0/8",  # loopback; `is_loopback` handles it separately
        "169.254.0.0/16",  # link-local; contains the metadata services of most clouds
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments; contains Oracle's metadata service
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, broadcast
        "168.63.129.16/32",  # Azure's services for its virtual machines, within the public address space
    )
)
"""IPv4 ranges that are not public, from https://www.iana.org/assignments/iana-ipv4-special-registry (2025-10), and the
ranges that clouds reserve for their machines.
"""

_PUBLIC_6 = ipaddress.IPv6Network("2000::/3")
"""The global unicast addresses (https://www.iana.org/assignments/ipv6-address-space)."""

_NOT_PUBLIC_6 = tuple(
    ipaddress.IPv6Network(network)
    for network in (
        "2001::/23",  # protocol assignments: Teredo, ORCHID, benchmarks
        "2001:db8::/32",  # documentation
        "3fff::/20",  # documentation
    )
)
"""Ranges within the global unicast addresses that are not public
(https://www.iana.org/assignments/iana-ipv6-special-registry, 2025-10).
"""

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
"""Addresses with an IPv4 address in the last 32 bits (RFC 6052). The local-use prefix 64:ff9b:1::/48 is refused."""

_ISATAP = (bytes.fromhex("00005efe"), bytes.fromhex("02005efe"))
"""The bytes before the IPv4 address in an ISATAP address (RFC 5214, section 6.1)."""


async def resolve_host(host: str, port: int) -> Sequence[str]:
    """Return the addresses of a host from the system's resolver. An address, in any notation, resolves to itself.

    Raises:
        OSError: the host has no addresses.
    """
    found = await in_thread(lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    return list(dict.fromkeys(str(each[4][0]) for each in found))


def refusal_reason(addresses: Sequence[str], *, loopback: bool = True) -> str | None:
    """Return why connections to a host are refused, or None if they are allowed.

    A single address that is not allowed is enough to refuse the host, because the connection could use any address.

    Args:
        addresses: all addresses of the host.
        loopback: whether connections to this machine are allowed.
    """
    if not addresses:
        return "it has no address"
    for text in addresses:
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            return f"{text!r} is not an address"
        if is_loopback(address):
            if not loopback:
                return f"{text} is this machine itself"
        elif not is_public(address):
            return f"{text} is not a public address"
    return None


def is_loopback(address: Address) -> bool:
    """Return whether an address is a loopback address, which may be an IPv4-mapped IPv6 address."""
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback


def is_public(address: Address) -> bool:
    """Return whether an address, and any IPv4 address embedded in it, is on the public internet."""
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in network for network in _NOT_PUBLIC_4)
    if address.scope_id is not None:
        return False
    inner = _embedded_ipv4(address)
    if inner is not None and not is_public(inner):
        return False
    if address.ipv4_mapped is not None or address in _NAT64:
        return True
    return address in _PUBLIC_6 and not any(address in network for network in _NOT_PUBLIC_6)


def _embedded_ipv4(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address embedded in an IPv6 address, if any."""
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address in _NAT64 or address.packed[8:12] in _ISATAP:
        return ipaddress.IPv4Address(address.packed[12:])
    return None
