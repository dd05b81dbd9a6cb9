"""Whom a served recording answers."""

from __future__ import annotations

import dataclasses
import http.client
import json
from typing import Any

import pytest
from anthropic import Anthropic, BadRequestError

from agentobs.errors import UsageError
from agentobs.recording.wire.provider_server import ServedProvider, ServeOptions
from agentobs.records.exchanges import ModelExchange, Question, Recording
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
    with pytest.raises(UsageError, match="ports range from 0 to 65535"):
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


SECRETS = [f"ghp_{letter * 36}" for letter in "aBcD"]


def _asks(*texts: str) -> bytes:
    messages = [{"role": "user", "content": each} for each in texts]
    return json.dumps({"model": "m", "messages": messages}).encode()


def _recording(*bodies: bytes) -> Recording:
    """A recording whose requests are these, as they are kept: with placeholders in place of secrets."""
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


def test_a_question_with_secrets_is_answered() -> None:
    """Whichever key stands where one was taken out; not where one stands in the place of two, or two of one."""
    one, two = "[redacted:github_token:1]", "[redacted:github_token:2]"
    recording = _recording(_asks(f"{one} and {one}"), _asks(f"{one} and {two}"))
    a, b, c, d = SECRETS
    with ServedProvider(recording) as provider:
        status, told = _post(provider, _asks(f"{a} and {b}"))
        assert (status, "answer 1" in told) == (200, True)
        assert _post(provider, _asks(f"{c} and {d}"))[0] == 410
        status, told = _post(provider, _asks(f"{c} and {c}"))
        assert (status, "answer 0" in told) == (200, True)


def test_what_was_not_recorded_names_the_nearest() -> None:
    """The 410 says which request is most like it, and where both part; no secret is in it."""
    recording = _recording(_asks("Hi."), _asks("Hi.", "Go on."), _asks("Bye."))
    with ServedProvider(recording) as provider:
        status, told = _post(provider, _asks("Hi.", f"Stop {SECRETS[0]}."))
    assert status == 410
    assert "(3 of 3 exchanges left); request 2 of the recording is the most similar" in told
    assert "and parts at $.messages[1].content" in told
    assert SECRETS[0] not in told
