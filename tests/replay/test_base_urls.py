"""Gateways and cloud platforms: whether a request is a turn depends on its route, not on the path of the base URL."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from anthropic import Anthropic, AnthropicBedrock, AnthropicVertex

import agentobs
from replay import DivergenceError, Replayer
from tests.provider_script import call, text
from tests.replay.agents import KEY, TOOLS
from tests.replay.raw_provider import JSON, play_chunks
from tests.replay.wire_recordings import NOWHERE, REQUEST, message_json, recorded, replayed

RESPONSES = [
    play_chunks(200, JSON, message_json(call(1, "weather", city="Oslo"))),
    play_chunks(200, JSON, message_json(text("Rain."), number=2)),
]


def through_gateway(url: str, prefix: str = "/api/v1/anthropic") -> Any:
    return Anthropic(api_key=KEY, base_url=f"{url}{prefix}")


def through_bedrock(url: str) -> Any:
    return AnthropicBedrock(
        api_key="bedrock-key-0123456789", aws_region="eu-west-1", base_url=f"{url}/aws"
    )


def through_vertex(url: str) -> Any:
    return AnthropicVertex(
        base_url=f"{url}/google/v1", access_token="ya29.a-token", project_id="p", region="r"
    )


CLIENTS: dict[str, tuple[Callable[[str], Any], str]] = {
    "gateway": (through_gateway, "/:id/v1/anthropic/v1/messages"),
    "bedrock": (through_bedrock, "/:id/model/:id/invoke"),
    "vertex": (
        through_vertex,
        "/:id/v1/projects/:id/locations/:id/publishers/anthropic/models/:id:rawPredict",
    ),
}


def agent(client_for: Callable[[str], Any]) -> Callable[[str], str]:
    """Return an agent that runs one tool call, with the client that `client_for` creates for a URL."""

    def run(url: str) -> str:
        client = agentobs.record(client_for(url))
        messages: list[Any] = [*REQUEST["messages"]]
        with agentobs.session("prefixed"):
            while True:
                found = client.messages.create(**{**REQUEST, "tools": TOOLS, "messages": messages})
                block = found.content[0]
                if block.type == "text":
                    return str(block.text)
                result = {"type": "tool_result", "tool_use_id": block.id, "content": "rain, 4 C"}
                messages += [
                    {"role": "assistant", "content": [block.to_dict()]},
                    {"role": "user", "content": [result]},
                ]

    return run


@pytest.mark.slow
@pytest.mark.parametrize("name", CLIENTS)
def test_turns_and_tools_are_counted_on_every_platform(tmp_path: Path, name: str) -> None:
    """On every platform, turns, tool calls and tokens are counted, and the endpoint contains only the constant parts of
    the path.
    """
    client_for, endpoint = CLIENTS[name]
    live, fixture, _ = recorded(tmp_path, RESPONSES, agent(client_for))
    assert live == "Rain."
    with agentobs.connect(tmp_path / "home") as store:
        (session,) = store.execute(
            "SELECT turns, tool_calls, input_tokens FROM sessions"
        ).fetchall()
        attempts = store.execute("SELECT DISTINCT endpoint, makes_turns FROM attempts").fetchall()
        results = store.execute("SELECT name FROM tool_results JOIN tool_calls USING (tool_use_id)")
        assert results.fetchall() == [("weather",)]
    assert session == (2, 1, 20)
    assert attempts == [(endpoint, True)]
    assert replayed(fixture, agent(client_for)) == live


def test_a_recording_replays_with_another_base_url(tmp_path: Path) -> None:
    """A session that was recorded through a gateway replays without the gateway, and a note names both paths."""
    live, fixture, _ = recorded(tmp_path, RESPONSES, agent(through_gateway))
    assert {each.path for each in fixture.requests} == {"/api/v1/anthropic/v1/messages"}
    with Replayer(fixture) as replay:
        run = agent(lambda url: through_gateway(url, prefix=""))
        assert replay.run(run, NOWHERE) == live
    assert replay.notes == [
        "prefixed: the path of the base URL differs from the recording: requests to /v1/messages are compared with "
        "those to /api/v1/anthropic/v1/messages"
    ]


def test_another_route_is_a_divergence(tmp_path: Path) -> None:
    """A request to another route diverges, because only the prefix of the path is ignored."""
    _, fixture, _ = recorded(tmp_path, RESPONSES, agent(through_gateway))

    def count(url: str) -> None:
        client = agentobs.record(through_gateway(url, prefix=""))
        with agentobs.session("prefixed"):
            client.messages.count_tokens(model=REQUEST["model"], messages=REQUEST["messages"])

    with pytest.raises(DivergenceError, match="count_tokens"):
        replayed(fixture, count)
