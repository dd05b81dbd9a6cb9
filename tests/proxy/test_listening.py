"""Listening: other machines reach the proxy only with permission, TLS and a secret."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from agentobs.errors import UsageError
from agentobs.proxy.listening import Address, check, listening_socket
from agentobs.tls import tls_context

SECRET = "a-secret-of-more-than-16-characters"


@pytest.mark.parametrize(
    ("address", "message"),
    [
        (Address("0.0.0.0"), "--allow-remote"),
        (Address("192.0.2.1"), "--allow-remote"),
        (Address("::"), "--allow-remote"),
        (Address("localhost"), "not an IP address"),
        (Address("0.0.0.0", remote="host.example"), "AGENTOBS_PROXY_SECRET"),
        (Address("127.0.0.1", remote="host.example"), "AGENTOBS_PROXY_SECRET"),
        (Address("0.0.0.0", remote="host.example", secret="short"), "at least 16 characters"),
        (Address(secret="x"), "at least 16 characters"),
        (Address(secret="with/slashes?and#others"), "letters, digits"),
        (Address("0.0.0.0", remote="host.example", secret=SECRET), "unencrypted"),
    ],
)
def test_an_open_address_is_refused(address: Address, message: str) -> None:
    """Each error names what is missing."""
    with pytest.raises(UsageError, match=message):
        check(address)


def test_loopback_needs_nothing() -> None:
    """Both versions of IP."""
    check(Address())
    check(Address("::1"))


def test_a_port_in_use_is_named() -> None:
    """The error states what to do."""
    with socket.socket() as used:
        used.bind(("127.0.0.1", 0))
        used.listen()
        port = used.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port}.*already in use.*--port"):
            listening_socket(Address(port=port))


def test_responses_are_sent_without_delay() -> None:
    """With Nagle's algorithm, the second part of a stream would wait until the client confirms the first, for 40 ms."""

    async def accepted() -> int:
        found: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connection = writer.get_extra_info("socket")
            found.set_result(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        listening = listening_socket(Address())
        async with await asyncio.start_server(serve, sock=listening):
            _, writer = await asyncio.open_connection(*listening.getsockname())
            result = await found
            writer.close()
        return result

    assert asyncio.run(accepted())


def test_unusable_certificates(tmp_path: Path) -> None:
    """A certificate without a key, and files that contain neither."""
    file = tmp_path / "x.pem"
    file.write_text("no certificate")
    with pytest.raises(UsageError, match="--tls-key"):
        tls_context(file, None)
    with pytest.raises(UsageError, match="cannot be used"):
        tls_context(file, file)
    assert tls_context(None, None) is None
