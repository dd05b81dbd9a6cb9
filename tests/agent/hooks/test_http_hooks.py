"""Hooks that are HTTP servers, over real HTTP on the loopback interface."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from agentobs.agent.hooks import Hook, Http
from tests.loopback import LoopbackServer

from .live_hooks import answer

Answers = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        served: Any = self.server
        served.requests.append((self.command, self.path, headers, body))
        self.close_connection = True
        served.answers(self)

    do_GET = do_POST

    def reply(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {**headers, "content-length": str(len(body))}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


class Served(LoopbackServer):
    """A server that sends scripted responses and keeps its requests."""

    answers: Answers

    def __init__(self) -> None:
        super().__init__(Handler)
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []

    def url(self, path: str = "/hook", host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.server_port}{path}"


@pytest.fixture
def server() -> Iterator[Served]:
    with Served() as served:
        served.start()
        yield served
        served.stop()


def resolving(**names: Sequence[str]) -> Any:
    """Return a resolver that knows these names and keeps the names that it resolved.

    An underscore in a name stands for a dot.
    """
    hosts: list[str] = []

    async def resolve(host: str, port: int) -> Sequence[str]:
        hosts.append(host)
        return names.get(host.replace(".", "_"), [host])

    resolve.hosts = hosts  # type: ignore[attr-defined]
    return resolve


def test_a_payload_is_posted_and_answered(server: Served) -> None:
    """The payload is posted as JSON with the headers of the hook, and the response is a JSON object."""
    server.answers = lambda handler: handler.reply(200, b'{"decision": "deny", "reason": "No."}')
    read = answer(Http(server.url(), {"X-Key": "1"}), tool_name="look")
    assert (read.outcome, read.reason, read.decision) == ("blocking", "No.", "deny")
    ((method, path, headers, body),) = server.requests
    assert (method, path, headers["x-key"]) == ("POST", "/hook", "1")
    assert headers["content-type"] == "application/json"
    assert json.loads(body)["tool_name"] == "look"


@pytest.mark.parametrize(
    ("status", "body", "outcome", "found"),
    [
        (200, b"", "success", ""),
        (204, b"", "success", ""),
        (200, b"<html>", "non_blocking_error", "not JSON"),
        (403, b'{"decision": "deny"}', "non_blocking_error", "status 403"),
        (500, b"ouch", "non_blocking_error", "status 500: ouch"),
    ],
)
def test_http_statuses_and_bodies(
    server: Served, status: int, body: bytes, outcome: str, found: str
) -> None:
    """An HTTP error or a body that is not JSON is an error of the hook and blocks nothing; an empty body is valid."""
    server.answers = lambda handler: handler.reply(status, body)
    read = answer(Http(server.url()))
    assert read.outcome == outcome
    assert found in read.reason


def endless(handler: Handler) -> None:
    handler.send_response(200)
    handler.end_headers()
    for _ in range(10_000):
        handler.wfile.write(b" " * 100_000)


def compressed(handler: Handler) -> None:
    handler.reply(200, b"\x1f\x8b" + b"x" * 100, content_encoding="gzip")


def broken(handler: Handler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{")


def no_http(handler: Handler) -> None:
    handler.wfile.write(b"\x00\xff\r\n\r\n")


@pytest.mark.parametrize(
    ("answers", "found"),
    [
        (endless, "longer than 1,000,000 bytes"),
        (compressed, "compressed"),
        (broken, "the request failed"),
        (no_http, "the request failed"),
    ],
)
def test_invalid_http_responses(server: Served, answers: Answers, found: str) -> None:
    """An endless body, a compressed body (possibly a bomb), an incomplete body, and a response that is not HTTP are
    errors of the hook.
    """
    server.answers = answers
    read = answer(Http(server.url()))
    assert read.outcome == "non_blocking_error"
    assert found in read.reason


def test_a_server_that_does_not_respond(server: Served) -> None:
    """If the server does not respond, the hook times out and its outcome is `cancelled`."""
    is_released = threading.Event()

    def hold(handler: Handler) -> None:
        is_released.wait(20)

    server.answers = hold
    read = answer(Hook("stop", Http(server.url()), timeout_s=0.2))
    is_released.set()
    assert read.outcome == "cancelled"


def test_a_refused_connection() -> None:
    """A refused connection is a veto if the hook is a gate; otherwise it is an error with a description."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    gate = answer(Http(f"http://127.0.0.1:{port}/"))
    other = answer(Http(f"http://127.0.0.1:{port}/"), "stop")
    assert (gate.outcome, other.outcome) == ("blocking", "non_blocking_error")
    assert "the request failed" in gate.reason
    assert "the request failed" in other.reason


@pytest.mark.parametrize(
    "host",
    [
        "169.254.169.254",
        "10.0.0.1",
        "[fd00:ec2::254]",
        "[::ffff:10.0.0.1]",
        "[64:ff9b::a9fe:a9fe]",
        "[2002:a00:1::]",
        "0.0.0.0",
        "2852039166",
        "0xa9.254.0251.254",
        "169.254.169.254.",
        "user@169.254.169.254",
    ],
)
def test_private_addresses_are_rejected(host: str) -> None:
    """A private address is rejected in every spelling, before any connection is made, so a gate is a veto."""
    read = answer(Http(f"http://{host}/latest/meta-data/"))
    assert read.outcome == "blocking"
    assert "is not allowed" in read.reason or "cannot be resolved" in read.reason


def test_a_gate_whose_server_cannot_be_reached_is_a_veto() -> None:
    """A host without an address, and a host that does not respond within half of the hook's timeout."""

    async def unknown(host: str, port: int) -> list[str]:
        raise OSError("no such host")

    read = answer(Http("http://hook.test/"), live={"resolve": unknown})
    assert (read.outcome, "cannot be resolved" in read.reason) == ("blocking", True)
    with socket.socket() as full, contextlib.ExitStack() as waiting:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(4):  # fill the queue of connections, so that the next one gets no answer
            client = waiting.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(full.getsockname())
        hook = Hook("pre_tool_use", Http(f"http://127.0.0.1:{full.getsockname()[1]}/"), timeout_s=1)
        read = answer(hook)
    assert (read.outcome, "the request failed" in read.reason) == ("blocking", True)


def test_a_name_with_a_private_address_is_rejected(server: Served) -> None:
    """If one of a name's addresses is private, the name is rejected, because any of its addresses could be used."""
    live = {"resolve": resolving(two_test=["127.0.0.1", "10.0.0.1"])}
    read = answer(Http(server.url(host="two.test")), live=live)
    assert "10.0.0.1 is not a public address" in read.reason
    assert server.requests == []


def test_a_name_is_resolved_once(server: Served) -> None:
    """A connection uses the address that was checked, without a second DNS lookup; the `host` header contains
    the name.
    """
    server.answers = lambda handler: handler.reply(200)
    resolve = resolving(hook_test=["127.0.0.1"])
    read = answer(Http(server.url(host="hook.test")), live={"resolve": resolve})
    assert read.outcome == "success"
    assert resolve.hosts == ["hook.test"]
    assert server.requests[0][2]["host"] == f"hook.test:{server.server_port}"


def test_the_next_address_is_tried_if_one_does_not_respond(server: Served) -> None:
    """If an address does not respond, the next address is tried; `localhost`, for example, often resolves to an IPv6
    address first.
    """
    server.answers = lambda handler: handler.reply(200)
    live = {"resolve": resolving(hook_test=["::1", "127.0.0.1"])}
    assert answer(Http(server.url(host="hook.test")), live=live).outcome == "success"
    assert len(server.requests) == 1


@pytest.mark.parametrize(("status", "method"), [(302, "GET"), (307, "POST"), (308, "POST")])
def test_redirects_are_followed(server: Served, status: int, method: str) -> None:
    """A redirect within the same origin is followed, with the headers of the hook."""

    def answers(handler: Handler) -> None:
        if handler.path == "/hook":
            handler.reply(status, location="/there")
        else:
            handler.reply(200, b'{"reason": "there"}')

    server.answers = answers
    assert answer(Http(server.url(), {"authorization": "x"})).reason == "there"
    requests = server.requests[1]
    assert (requests[0], requests[2]["authorization"], bool(requests[3])) == (
        "/there" and method,
        "x",
        method == "POST",
    )


@pytest.mark.parametrize(
    ("location", "found"),
    [
        ("http://169.254.169.254/latest/", "is not allowed"),
        ("//10.0.0.1/", "is not allowed"),
        ("http://inside.test/", "10.0.0.7 is not a public address"),
        ("file:///etc/passwd", "not a server"),
        ("gopher://127.0.0.1/", "not a server"),
        ("http://[::1", "the request failed"),
        ("/hook", "redirects more than 3 times"),
    ],
)
def test_redirect_targets_are_checked(server: Served, location: str, found: str) -> None:
    """Redirects to a private address, to an invalid target, or in a circle reach no server, so a gate is a veto."""
    server.answers = lambda handler: handler.reply(307, location=location)
    live = {"resolve": resolving(inside_test=["10.0.0.7"])}
    read = answer(Http(server.url()), live=live)
    assert read.outcome == "blocking"
    assert found in read.reason


def test_headers_are_not_sent_to_another_origin(server: Served) -> None:
    """The headers of a hook are not sent to another origin, because they may contain a credential."""
    with Served() as other:
        other.start()
        server.answers = lambda handler: handler.reply(307, location=other.url("/there"))
        other.answers = lambda handler: handler.reply(200)
        assert answer(Http(server.url(), {"authorization": "x"})).outcome == "success"
        ((_, _, headers, body),) = other.requests
        other.stop()
    assert "authorization" not in headers
    assert body


def test_proxies_of_the_environment_are_not_used(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proxies from the environment are not used, because the address of the target could not be checked behind
    a proxy.
    """
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    server.answers = lambda handler: handler.reply(200)
    assert answer(Http(server.url())).outcome == "success"


def test_a_configured_proxy_is_used(server: Served) -> None:
    """A configured proxy gets the complete URL, whose address is not checked, and its redirects are not followed."""
    server.answers = lambda handler: handler.reply(200, b'{"reason": "proxied"}')
    http = Http("http://10.0.0.1/hook", proxy=server.url(""))
    assert answer(http).reason == "proxied"
    assert server.requests[0][1] == "http://10.0.0.1/hook"
    server.answers = lambda handler: handler.reply(307, location="/there")
    assert "behind a proxy" in answer(http).reason


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """Create a certificate and its key for hook.test."""
    file = tmp_path / "both.pem"
    arguments = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=hook.test -addext"
    words = ["openssl", *arguments.split(), "subjectAltName=DNS:hook.test"]
    ended = subprocess.run([*words, "-keyout", "-", "-out", "-"], capture_output=True, check=True)
    file.write_bytes(ended.stdout)
    return file


def test_tls_verifies_the_name(
    server: Served, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The certificate must match the name in the URL, although the connection uses an address."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.answers = lambda handler: handler.reply(200)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    live = {"resolve": resolving(hook_test=["127.0.0.1"], other_test=["127.0.0.1"])}
    url = server.url(host="hook.test").replace("http:", "https:")
    assert answer(Http(url), live=live).outcome == "success"
    refused = answer(Http(url.replace("hook.test", "other.test")), live=live)
    assert refused.outcome == "blocking"
    assert "CERTIFICATE_VERIFY_FAILED" in refused.reason
