"""The addresses that an HTTP hook may connect to."""

from __future__ import annotations

import asyncio

import pytest

from agentobs.agent.execution.network_addresses import refusal_reason, resolve_host

PRIVATE_4 = [
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "10.255.255.255",
    "100.64.0.1",
    "100.100.100.200",
    "100.127.255.254",
    "169.254.0.1",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.1",
    "192.0.0.192",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.0.1",
    "192.168.255.255",
    "198.18.0.1",
    "198.19.255.255",
    "198.51.100.7",
    "203.0.113.7",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "168.63.129.16",
]
"""Private IPv4 ranges: this host, private, shared, link-local, metadata, protocol, documentation, benchmark,
multicast, reserved.
"""

PUBLIC_4 = [
    "1.1.1.1",
    "8.8.8.8",
    "9.255.255.255",
    "11.0.0.0",
    "100.63.255.255",
    "100.128.0.0",
    "126.0.0.1",
    "128.0.0.1",
    "169.253.255.255",
    "169.255.0.0",
    "172.15.255.255",
    "172.32.0.0",
    "192.167.255.255",
    "192.169.0.0",
    "198.17.255.255",
    "198.20.0.0",
    "223.255.255.255",
    "168.63.129.17",
]
"""The public addresses next to the edges of the private IPv4 ranges."""

PRIVATE_6 = [
    "::",
    "fe80::1",
    "fe80::1%1",
    "febf::1",
    "fec0::1",
    "fc00::1",
    "fd00:ec2::254",
    "fdff::1",
    "ff02::1",
    "ff0e::1",
    "100::1",
    "2001::1",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "2001:2::1",
    "2001:10::1",
    "2001:20::1",
    "2001:db8::1",
    "3fff::1",
    "5f00::1",
    "4000::1",
    "64:ff9b:1::1",
    "64:ff9b:1:fffe::8.8.8.8",
    "::ffff:0:8.8.8.8",
    "2606:4700::1%2",
]
"""Private IPv6 ranges: unspecified, link-local, site-local, unique local, multicast, discard, Teredo, benchmark,
ORCHID, documentation, unassigned, local NAT64, IPv4-translated, and any address with a scope.
"""

PUBLIC_6 = [
    "2606:4700::1111",
    "2001:4860:4860::8888",
    "2a00:1450::1",
    "2002:808:808::1",
    "64:ff9b::8.8.8.8",
]

LOOPBACK = ["127.0.0.1", "127.1.2.3", "127.255.255.255", "::1", "::ffff:127.0.0.1"]


def wrapped(address: str) -> list[str]:
    """Return the IPv6 forms that embed an IPv4 address."""
    a, b, c, d = map(int, address.split("."))
    return [
        f"::ffff:{address}",
        f"::{address}",
        f"64:ff9b::{address}",
        f"2002:{a:02x}{b:02x}:{c:02x}{d:02x}::1",
        f"2606:4700::5efe:{address}",
        f"2606:4700::200:5efe:{address}",
    ]


@pytest.mark.parametrize("address", [*PRIVATE_4, *PRIVATE_6])
def test_addresses_that_are_not_public_are_refused(address: str) -> None:
    """The addresses at the edges of each range that is not public are refused."""
    assert refusal_reason([address]) == f"{address} is not a public address"


@pytest.mark.parametrize("address", [*PUBLIC_4, *PUBLIC_6])
def test_public_addresses_are_allowed(address: str) -> None:
    """Public addresses are allowed, even those next to a range that is not public."""
    assert refusal_reason([address]) is None


@pytest.mark.parametrize("address", [each for inner in PRIVATE_4 for each in wrapped(inner)])
def test_embedded_private_addresses_are_refused(address: str) -> None:
    """An IPv6 address that embeds a private IPv4 address (IPv4-mapped, IPv4-compatible, NAT64, 6to4, ISATAP) is
    refused.
    """
    assert refusal_reason([address]) is not None


@pytest.mark.parametrize("address", wrapped("127.0.0.1")[1:])
def test_embedded_loopback_addresses_are_refused(address: str) -> None:
    """An IPv6 address that embeds the loopback address is refused, because it would lead to the loopback interface of a
    gateway.
    """
    assert refusal_reason([address]) is not None


@pytest.mark.parametrize("address", LOOPBACK)
def test_loopback_addresses_are_allowed(address: str) -> None:
    """Loopback addresses are allowed, except as the target of a redirect from another machine."""
    assert refusal_reason([address]) is None
    assert refusal_reason([address], loopback=False) == f"{address} is this machine itself"


def test_a_name_with_one_private_address_is_refused() -> None:
    """A name is refused if any of its addresses is private, or if it has no address."""
    assert refusal_reason(["8.8.8.8", "10.0.0.1"]) == "10.0.0.1 is not a public address"
    assert refusal_reason(["2606:4700::1111", "8.8.8.8"]) is None
    assert refusal_reason([]) == "it has no address"


@pytest.mark.parametrize(
    "host",
    ["10.1", "0xa.1", "012.0.0.1", "167772161", "0xa000001", "0251.0376.0251.0376", "2852039166"],
)
def test_every_spelling_of_a_private_address_is_refused(host: str) -> None:
    """Decimal, octal, hexadecimal and shortened spellings of a private address are refused, because the system resolves
    them before the check.
    """
    addresses = asyncio.run(resolve_host(host, 80))
    assert refusal_reason(addresses) is not None


def test_localhost_is_allowed() -> None:
    """The system resolves `localhost` to loopback addresses, which are allowed."""
    addresses = asyncio.run(resolve_host("localhost", 80))
    assert addresses
    assert refusal_reason(addresses) is None
