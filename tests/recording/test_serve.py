"""Whom a served recording answers."""

from __future__ import annotations

import http.client
from typing import Any

import pytest
from anthropic import Anthropic, BadRequestError

from agentobs.errors import UsageError
from agentobs.recording.serve import ServedProvider, ServeOptions
from tests.provider_script import script, streamed, text


def asked(port: int, headers: list[tuple[str, str]]) -> int:
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
def test_only_this_machine_is_answered(headers: list[tuple[str, str]], status: int) -> None:
    """A page of the web, under whatever name it reaches this machine, gets 403, and spends no exchange."""
    with ServedProvider(script(streamed(text("ok"))), ServeOptions(match="order")) as provider:
        port = int(provider.url.rpartition(":")[2])
        said = [(name, value.format(port=port)) for name, value in headers]
        assert asked(port, said) == status
        assert provider.script.left == (status != 200)


@pytest.mark.parametrize("port", [-1, 65536, 10**9])
def test_a_port_that_does_not_exist_is_refused(port: int) -> None:
    """With an error of ours that says which ports there are."""
    with pytest.raises(UsageError, match="ports go from 0 to 65535"):
        ServedProvider(script(), port=port)


def test_a_strict_provider_refuses_what_the_real_one_would() -> None:
    """A call without its result gets a 400 in the provider's words, and spends no exchange."""
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
        assert provider.script.left == 1
        result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "nothing"}
        messages[2] = {"role": "user", "content": [result]}
        with client.messages.stream(model="m", max_tokens=9, messages=messages) as stream:
            assert stream.get_final_text() == "ok"
