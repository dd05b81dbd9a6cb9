"""Which requests the provider server answers from a recording."""

from __future__ import annotations

import dataclasses
import http.client
import json
import socket
from typing import Any

import pytest
from anthropic import Anthropic, BadRequestError

from agentobs.errors import UsageError
from agentobs.recording.wire.provider_server import Script, ServedProvider, ServeOptions
from agentobs.records.exchanges import ModelExchange, Question, Recording
from tests.provider_script import script, streamed, text


def status_of(port: int, headers: list[tuple[str, str]]) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.putrequest("POST", "/v1/messages", skip_host=True)
    for name, value in [*headers, ("content-length", "2")]:
        connection.putheader(name, value)
    connection.endheaders(b"{}")
    try:
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([("host", "127.0.0.1:{port}")], 200),
        ([("host", "LOCALHOST:{port}"), ("origin", "http://localhost:{port}")], 200),
        ([("host", "[::1]:{port}")], 200),
        ([("host", "evil.example:{port}")], 403),
        ([("host", "127.0.0.1:1")], 403),
        ([("host", "127.0.0.1")], 403),
        ([], 403),
        ([("host", "127.0.0.1:{port}"), ("host", "evil.example")], 403),
        ([("host", "127.0.0.1:{port}"), ("origin", "http://evil.example")], 403),
        ([("host", "127.0.0.1:{port}"), ("origin", "null")], 403),
    ],
)
def test_only_local_requests_are_answered(headers: list[tuple[str, str]], status: int) -> None:
    """A web page, whatever host name it uses for this machine, gets 403, and uses no exchange."""
    with ServedProvider(script(streamed(text("ok"))), ServeOptions(match="order")) as provider:
        port = int(provider.url.rpartition(":")[2])
        filled_headers = [(name, value.format(port=port)) for name, value in headers]
        assert status_of(port, filled_headers) == status
        assert provider.script.unused == (status != 200)


BODIES: list[tuple[list[str], bytes, int]] = [
    (["transfer-encoding: chunked"], b"5\r\nhello\r\n0\r\n\r\n", 200),
    (["transfer-encoding: chunked"], b"x\r\n", 400),
    (["transfer-encoding: chunked"], b"-5\r\nhello\r\n", 400),
    (["transfer-encoding: chunked"], b"ffffffff\r\n", 413),
    (["transfer-encoding: gzip, chunked"], b"", 400),
    (["transfer-encoding: chunked", "content-length: 5"], b"5\r\nhello\r\n0\r\n\r\n", 400),
    (["content-length: 2"], b"{}", 200),
    (["content-length: 2", "content-length: 3"], b"{} ", 400),
    (["content-length: +2"], b"{}", 400),
    (["content-length: 99999999999"], b"", 413),
    (["content-length: 4", "content-encoding: gzip"], b"text", 400),
]


@pytest.mark.parametrize(("headers", "body", "status"), BODIES)
def test_a_malformed_body_is_refused(headers: list[str], body: bytes, status: int) -> None:
    """A body with malformed or ambiguous framing or compression gets 400, and a long one 413; both are closed."""
    with (
        ServedProvider(script(streamed(text("ok"))), ServeOptions(match="order")) as provider,
        socket.create_connection(("127.0.0.1", int(provider.url.rpartition(":")[2]))) as client,
    ):
        host = provider.url.removeprefix("http://")
        head = ["POST /v1/messages HTTP/1.1", f"host: {host}", *headers, "", ""]
        client.sendall("\r\n".join(head).encode() + body)
        client.shutdown(socket.SHUT_WR)
        received = b"".join(iter(lambda: client.recv(65536), b""))
    assert received.startswith(b"HTTP/1.1 %d " % status)
    assert (status == 200) == (provider.script.unused == 0)


@pytest.mark.parametrize("port", [-1, 65536, 10**9])
def test_an_invalid_port_is_rejected(port: int) -> None:
    """The error names the valid ports."""
    with pytest.raises(UsageError, match="ports range from 0 to 65535"):
        ServedProvider(script(), port=port)


def test_a_strict_provider_rejects_invalid_conversations() -> None:
    """A tool call without a result gets a 400 with the text of the real provider, and uses no exchange."""
    call = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}
    messages: list[Any] = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": "Go on"},
    ]
    options = ServeOptions(match="order", strict=True)
    with (
        ServedProvider(script(streamed(text("ok"))), options) as provider,
        Anthropic(api_key="made-up", base_url=provider.url) as client,
    ):
        with pytest.raises(BadRequestError, match=r"without `tool_result` blocks.*toolu_1"):
            client.messages.create(model="m", max_tokens=9, messages=messages)
        assert provider.script.unused == 1
        result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "nothing"}
        messages[2] = {"role": "user", "content": [result]}
        with client.messages.stream(model="m", max_tokens=9, messages=messages) as stream:
            assert stream.get_final_text() == "ok"


SECRETS = [f"ghp_{letter * 36}" for letter in "aBcD"]


def _asks(*texts: str) -> bytes:
    messages = [{"role": "user", "content": each} for each in texts]
    return json.dumps({"model": "m", "messages": messages}).encode()


def _recording(*bodies: bytes) -> Recording:
    """Return a recording with these requests, as they are recorded: with placeholders instead of secrets."""
    bare = script(*(streamed(text(f"answer {number}")) for number in range(len(bodies))))
    exchanges = tuple(
        dataclasses.replace(e, question=Question("POST", "/v1/messages", {}, body))
        for e, body in zip(bare.exchanges, bodies, strict=True)
        if isinstance(e, ModelExchange)
    )
    return dataclasses.replace(bare, exchanges=exchanges)


def _post(provider: ServedProvider, body: bytes) -> tuple[int, str]:
    connection = http.client.HTTPConnection(provider.url.removeprefix("http://"), timeout=10)
    try:
        connection.request("POST", "/v1/messages", body)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def test_a_request_with_secrets_is_answered() -> None:
    """Any key matches a placeholder, but one key does not match two placeholders, nor two keys one placeholder."""
    one, two = "[redacted:github_token:1]", "[redacted:github_token:2]"
    recording = _recording(_asks(f"{one} and {one}"), _asks(f"{one} and {two}"))
    a, b, c, d = SECRETS
    with ServedProvider(recording) as provider:
        status, response_text = _post(provider, _asks(f"{a} and {b}"))
        assert (status, "answer 1" in response_text) == (200, True)
        assert _post(provider, _asks(f"{c} and {d}"))[0] == 410
        status, response_text = _post(provider, _asks(f"{c} and {c}"))
        assert (status, "answer 0" in response_text) == (200, True)


def test_an_unknown_request_names_the_most_similar_one() -> None:
    """The 410 names the most similar request and the first difference, and contains no secret."""
    recording = _recording(_asks("Hi."), _asks("Hi.", "Go on."), _asks("Bye."))
    with ServedProvider(recording) as provider:
        status, response_text = _post(provider, _asks("Hi.", f"Stop {SECRETS[0]}."))
    assert status == 410
    assert (
        "(3 of 3 exchanges left); request 2 of the recording is the most similar" in response_text
    )
    assert "; first difference at $.messages[1].content" in response_text
    assert SECRETS[0] not in response_text


@pytest.mark.parametrize(
    ("recorded", "live"), [({}, {"max_tokens": 9}), ({"max_tokens": 9}, {})], ids=["added", "gone"]
)
def test_an_added_or_missing_key_is_the_first_difference(
    recorded: dict[str, int], live: dict[str, int]
) -> None:
    """The first difference of a request may be a key that only this request, or only the recorded one, contains."""
    recording = _recording(json.dumps({**json.loads(_asks("Hi.")), **recorded}).encode())
    unknown = json.dumps({**json.loads(_asks("Hi.")), **live}).encode()
    found = Script(recording).most_similar(Question("POST", "/v1/messages", {}, unknown))
    assert found == (1, "$.max_tokens")


def test_headers_of_the_original_connection_are_not_sent() -> None:
    """Headers that describe the original connection and its encoding are left out, because the body is decoded and sent
    with new framing. A HEAD request is answered without using an exchange.
    """
    original = {
        "Transfer-Encoding": "chunked",
        "content-encoding": "gzip",
        "content-length": "7",
        "connection": "keep-alive",
    }
    answer = streamed(text("ok"))
    recorded = dataclasses.replace(answer, headers={**answer.headers, **original})
    with ServedProvider(script(recorded), ServeOptions(match="order")) as provider:
        connection = http.client.HTTPConnection(provider.url.removeprefix("http://"), timeout=10)
        connection.request("HEAD", "/")
        head = connection.getresponse()
        assert (head.status, head.read()) == (200, b"")
        assert provider.script.unused == 1
        connection.request("POST", "/v1/messages", b"{}")
        response = connection.getresponse()
        assert response.read() == answer.body
        assert response.headers.get_all("transfer-encoding") == ["chunked"]
        assert response.headers.get_all("content-encoding") is None
        assert response.headers.get_all("content-length") is None
        connection.close()


def test_a_path_that_is_not_recorded_is_no_miss() -> None:
    """Clients of Bedrock list the inference profiles, which a recording proxy forwards without recording."""
    recording = _recording(_asks("hello"))
    with ServedProvider(recording) as provider:
        connection = http.client.HTTPConnection(provider.url.removeprefix("http://"), timeout=10)

        def status(method: str, path: str, **headers: str) -> int:
            connection.request(method, path, headers=headers)
            response = connection.getresponse()
            response.read()
            return response.status

        assert status("GET", "/inference-profiles?type=SYSTEM_DEFINED") == 404
        assert provider.script.missed == 0
        assert status("GET", "/v1/models", **{"anthropic-version": "2023-06-01"}) == 410
        assert status("POST", "/inference-profiles") == 410
        assert provider.script.missed == 2
        connection.close()


def test_a_gateway_prefix_does_not_matter() -> None:
    """A request whose path differs from the recorded one only in the prefix of the base URL is answered."""
    recording = _recording(_asks("hello"))
    with ServedProvider(recording) as provider:
        address = provider.url.removeprefix("http://")
        connection = http.client.HTTPConnection(address, timeout=10)
        connection.request("POST", "/anthropic/v1/messages", _asks("hello"))
        assert connection.getresponse().status == 200
        connection.close()
