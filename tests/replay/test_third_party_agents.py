"""Third-party agents, which are recorded and replayed without a change to their code.

Agents that need their own environment are tested by `make test-agents`, see docs/agents.md.
"""

from __future__ import annotations

import asyncio
import functools
import json
from pathlib import Path

import pytest
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.providers.anthropic import AnthropicProvider

import agentobs
from tests.provider_script import streamed, text
from tests.replay.agents import KEY, MODEL
from tests.replay.raw_provider import play
from tests.replay.wire_recordings import recorded, replayed
from tests.third_party_agents import pydantic_agent, tool_runner
from tests.third_party_agents.proof import REPLAYS, Run, prove
from tests.third_party_agents.provider import Provider


@pytest.mark.parametrize(
    ("run", "prompt", "tool"),
    [
        (
            tool_runner.run,
            "request 1, `$.messages[0].content`",
            "request 7, `$.messages[2].content[1].content`",
        ),
        (
            tool_runner.run_sync,
            "request 1, `$.messages[0].content`",
            "request 7, `$.messages[2].content[1].content`",
        ),
        (
            pydantic_agent.run,
            "request 1, `$.messages[0].content[0].text`",
            "request 7, `$.messages[2].content[1].content[0].text`",
        ),
    ],
    ids=["tool runner", "sync tool runner", "pydantic-ai"],
)
def test_an_agent_replays_unchanged(tmp_path: Path, run: Run, prompt: str, tool: str) -> None:
    """Each replay of an unchanged agent matches every request, and a change diverges at the first request that contains
    it.

    The requests include overloads, parallel tools, parallel agents and a failing tool. The change is one of the prompt
    or of a tool's result.
    """
    fixture, proof = prove(run, tmp_path)
    assert (proof.sent, proof.recorded) == (8, 8)
    assert proof.matched == (8,) * REPLAYS
    assert proof.prompt.startswith(prompt)
    assert proof.tool == f'{tool}: tool_result of weather(city="Rome")'
    assert [ask.answer.status for ask in fixture.requests].count(529) == 1


@pytest.mark.parametrize("run", [tool_runner.run, tool_runner.run_sync], ids=["async", "sync"])
def test_message_threads_replay(tmp_path: Path, run: Run) -> None:
    """A recording replays in which the runner sends only new messages from the second request on."""
    provider = Provider(has_threads=True)
    fixture, proof = prove(functools.partial(run, thread=None), tmp_path, provider)
    assert proof.matched == (8,) * REPLAYS
    assert provider.continued == 4
    bodies = [json.loads(fixture.body(ask.number)) for ask in fixture.requests]
    threads = [body.get("thread") or {} for body in bodies]
    continued = [
        (t, b) for t, b in zip(threads, bodies, strict=True) if t.get("type") == "continue"
    ]
    assert len(continued) == 4
    assert all(len(body["messages"]) == 1 for _, body in continued)
    assert proof.tool.startswith("request 7, `$.messages[0].content[1].content")


@pytest.mark.parametrize("run", [tool_runner.run, tool_runner.run_sync], ids=["async", "sync"])
def test_the_fallback_for_a_provider_without_threads_replays(tmp_path: Path, run: Run) -> None:
    """If the provider rejects message threads, the rejection and the complete requests that follow it replay."""
    provider = Provider()
    fixture, proof = prove(functools.partial(run, thread=None), tmp_path, provider)
    assert provider.refused > 0
    assert proof.matched == (proof.recorded,) * REPLAYS
    assert [ask.answer.status for ask in fixture.requests].count(400) == provider.refused


@pytest.mark.parametrize("hand_in", ["agent", "model", "provider"])
def test_a_recreated_http_client_stays_recorded(tmp_path: Path, hand_in: str) -> None:
    """If pydantic-ai recreates its HTTP client for another event loop, requests of the new client are recorded too."""

    def run(url: str) -> list[str]:
        provider = AnthropicProvider(api_key=KEY, base_url=url)
        model = AnthropicModel(MODEL, provider=provider)
        agent = Agent(model)
        agentobs.record({"agent": agent, "model": model, "provider": provider}[hand_in])
        first = provider.client._client
        with agentobs.session("loops"):
            texts = [asyncio.run(_ask(agent)) for _ in range(2)]
        assert provider.client._client is not first
        return texts

    live, fixture, raw = recorded(tmp_path, [play(streamed(text("hi")))] * 2, run)
    assert live == ["hi", "hi"]
    assert len(raw.requests) == len(fixture.requests) == 2
    assert replayed(fixture, run) == live


async def _ask(agent: Agent) -> str:
    return (await agent.run("Well?")).output
