"""The SDK's clients for cloud platforms: turns, tools, model and money are recorded, and sessions replay."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import aiohttp
import pytest
import requests
from anthropic import (
    AnthropicAWS,
    AnthropicBedrock,
    AnthropicBedrockMantle,
    AnthropicFoundry,
    AnthropicGoogleCloud,
    AnthropicVertex,
)

import agentobs
from agentobs.provider.anthropic.cloud_frames import FRAMES, enframe
from agentobs.provider.registry import ANTHROPIC, dialect_of
from agentobs.records.exchanges import ModelExchange
from replay import Fork, Replayer, ReplayOptions
from tests.provider_script import call, message_events, text
from tests.replay.raw_provider import JSON, SSE, Play, play_chunks, raw_provider
from tests.replay.wire_recordings import message_json, recorded, replayed

SECRET = "platform-key-0123456789"
REGION: dict[str, Any] = {"api_key": SECRET, "aws_region": "eu-west-1"}
CLIENTS: dict[str, Callable[[str], Any]] = {
    "bedrock": lambda url: AnthropicBedrock(base_url=url, **REGION),
    "mantle": lambda url: AnthropicBedrockMantle(base_url=f"{url}/anthropic", **REGION),
    "aws": lambda url: AnthropicAWS(base_url=url, workspace_id="w", **REGION),
    "foundry": lambda url: AnthropicFoundry(base_url=f"{url}/anthropic/", api_key=SECRET),
    "vertex": lambda url: AnthropicVertex(
        base_url=f"{url}/v1", access_token=SECRET, project_id="p", region="r"
    ),
    "google cloud": lambda url: AnthropicGoogleCloud(
        base_url=url, project="p", location="l", workspace_id="w", token_provider=lambda: SECRET
    ),
}
MODELS = {
    "bedrock": "eu.anthropic.claude-sonnet-4-5-20250929-v1:0",
    "vertex": "claude-sonnet-4-5@20250929",
}
OTHER_MODELS = {
    "bedrock": "eu.anthropic.claude-opus-4-5-20251101-v1:0",
    "vertex": "claude-opus-4-5@20251101",
}
OTHER_PATHS = {
    "bedrock": f"/model/{OTHER_MODELS['bedrock']}/invoke",
    "vertex": f"/publishers/anthropic/models/{OTHER_MODELS['vertex']}:rawPredict",
}
TOOL = {"name": "weather", "input_schema": {"type": "object"}}
CALL = call(1, "weather", city="Bern")


def plays(name: str, streamed: bool) -> list[Play]:
    if not streamed:
        return [play_chunks(200, JSON, message_json(each)) for each in (CALL, text("Rain."))]
    answers = [message_events(each) for each in (CALL, text("Rain."))]
    if name != "bedrock":
        return [play_chunks(200, SSE, *each) for each in answers]
    events = [[part.partition(b"data: ")[2].strip() for part in each] for each in answers]
    frames = [[enframe([event]) for event in each] for each in events]
    return [play_chunks(200, {"content-type": FRAMES}, *each) for each in frames]


def ask(client: Any, streamed: bool, **request: Any) -> list[Any]:
    """Return the content of a response."""
    if not streamed:
        return list(client.messages.create(**request).to_dict()["content"])
    if isinstance(client, AnthropicBedrock):
        # The decoder of the SDK needs botocore.
        with client.messages.with_streaming_response.create(**request, stream=True) as response:
            body = b"".join(response.http_response.iter_raw())
        return list(ANTHROPIC.message({"content-type": FRAMES}, body).raw["content"])
    with client.messages.stream(**request) as stream:
        return list(stream.get_final_message().to_dict()["content"])


def agent(name: str, streamed: bool) -> tuple[str, Callable[[str], Any]]:
    """Return the model of an agent on a platform, and a function that runs it, given a base URL."""
    model = MODELS.get(name, "claude-sonnet-4-5")

    def run(url: str) -> Any:
        client = agentobs.record(CLIENTS[name](url))
        messages: list[Any] = [{"role": "user", "content": "How is it?"}]
        request: dict[str, Any] = {"model": model, "max_tokens": 9, "tools": [TOOL]}
        with agentobs.session("platform"):
            content = ask(client, streamed, messages=messages, **request)
            result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "rain"}
            messages += [
                {"role": "assistant", "content": content},
                {"role": "user", "content": [result]},
            ]
            return content, ask(client, streamed, messages=messages, **request)

    return model, run


@pytest.mark.slow
@pytest.mark.parametrize("streamed", [False, True], ids=["complete", "streamed"])
@pytest.mark.parametrize("name", CLIENTS)
def test_a_platform_is_recorded_priced_and_replayed(
    tmp_path: Path, name: str, streamed: bool
) -> None:
    """A loop with a tool call is recorded with two turns, its tool, model and cost, and it replays. The credential is
    not written.
    """
    model, run = agent(name, streamed)
    live, fixture, raw = recorded(tmp_path, plays(name, streamed), run)
    assert live[0][0]["name"] == "weather"
    assert len(raw.requests) == len(fixture.requests) == 2
    assert replayed(fixture, run) == live
    with agentobs.connect(tmp_path / "home") as store:
        attempts = store.execute(
            "SELECT turn, model_requested, outcome, stop_reason, streamed FROM attempts ORDER BY turn"
        ).fetchall()
        [(called,)] = store.execute("SELECT name FROM tool_uses").fetchall()
        costs = store.execute("SELECT cost_usd FROM costs").fetchall()
    assert attempts == [
        (1, model, "ok", "tool_use", streamed),
        (2, model, "ok", "end_turn", streamed),
    ]
    assert called == "weather"
    assert len(costs) == 2
    assert all(usd > 0 for (usd,) in costs)
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert SECRET.encode() not in written


@pytest.mark.slow
@pytest.mark.parametrize("name", CLIENTS)
def test_a_fork_uses_another_model(tmp_path: Path, name: str) -> None:
    """The model of a fork is in the path of the live request if the platform expects it there, else in its body."""
    _, run = agent(name, False)
    live, fixture, _ = recorded(tmp_path, plays(name, False), run)
    chosen = OTHER_MODELS.get(name, "claude-opus-5")
    with (
        raw_provider(plays(name, False)[1:]) as raw,
        Replayer(fixture, ReplayOptions(fork=Fork(1, model=chosen))) as replayer,
    ):
        assert replayer.run(run, raw.url) == live
    [request] = raw.requests
    body = json.loads(request.body)
    if name in OTHER_MODELS:
        assert unquote(request.path).endswith(OTHER_PATHS[name])
        assert "model" not in body
    else:
        assert body["model"] == chosen
    *_, sent = [each for each in replayer.records if isinstance(each, ModelExchange)]
    assert unquote(sent.question.path) == unquote(request.path)


def post_with_requests(url: str, body: dict[str, Any]) -> Any:
    return requests.post(url, json=body).json()


def post_with_aiohttp(url: str, body: dict[str, Any]) -> Any:
    async def post() -> Any:
        async with aiohttp.ClientSession() as session, session.post(url, json=body) as response:
            return await response.json()

    return asyncio.run(post())


@pytest.mark.parametrize("post", [post_with_requests, post_with_aiohttp])
def test_a_fork_changes_the_path_of_other_clients(
    tmp_path: Path, post: Callable[[str, dict[str, Any]], Any]
) -> None:
    """The changed request has the path, the query and the body that the provider expects."""

    def run(url: str) -> list[Any]:
        target = f"{url}/model/{MODELS['bedrock']}/invoke?x=1"
        body: dict[str, Any] = {"max_tokens": 9, "messages": [{"role": "user", "content": "Go."}]}
        with agentobs.record_all(), agentobs.session("platform"):
            first = post(target, body)
            result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "rain"}
            body["messages"] += [
                {"role": "assistant", "content": first["content"]},
                {"role": "user", "content": [result]},
            ]
            return [first["content"], post(target, body)["content"]]

    live, fixture, _ = recorded(tmp_path, plays("bedrock", False), run)
    fork = Fork(1, model=OTHER_MODELS["bedrock"])
    with (
        raw_provider(plays("bedrock", False)[1:]) as raw,
        Replayer(fixture, ReplayOptions(fork=fork)) as replayer,
    ):
        assert replayer.run(run, raw.url) == live
    [request] = raw.requests
    assert unquote(request.path) == f"/model/{OTHER_MODELS['bedrock']}/invoke?x=1"
    assert json.loads(request.body)["messages"][2]["content"][0]["content"] == "rain"


@pytest.mark.parametrize(
    ("path", "model", "expected"),
    [
        ("/v1/messages?beta=true", "other", "/v1/messages?beta=true"),
        ("/model/a.claude%3A0/invoke", "b.claude:1", "/model/b.claude:1/invoke"),
        (
            "/gateway/model/arn%3Aaws%2Fx/invoke-with-response-stream?a=b",
            "arn:aws/y",
            "/gateway/model/arn:aws%2Fy/invoke-with-response-stream?a=b",
        ),
        ("/model/a/converse-stream", "b", "/model/b/converse-stream"),
        (
            "/v1/projects/p/locations/l/publishers/anthropic/models/a@1:streamRawPredict",
            "b@2",
            "/v1/projects/p/locations/l/publishers/anthropic/models/b@2:streamRawPredict",
        ),
        (
            "/v1/projects/p/locations/l/publishers/anthropic/models/count-tokens:rawPredict",
            "b@2",
            "/v1/projects/p/locations/l/publishers/anthropic/models/count-tokens:rawPredict",
        ),
    ],
)
def test_the_model_in_a_path_is_replaced(path: str, model: str, expected: str) -> None:
    found = dialect_of(path).with_model(path, model)
    assert found == expected
    assert dialect_of(found).model_in(found) in (None, model)


def test_bedrock_frames_carry_the_events() -> None:
    """The frames of the tests are those that the platform sends: one event in base64 each."""
    [event] = message_events(text("x"))[:1]
    data = event.partition(b"data: ")[2].strip()
    assert json.loads(data)["type"] == "message_start"
    assert enframe([data])[12:].startswith(b"\x0b:event-type\x07\x00\x05chunk")
