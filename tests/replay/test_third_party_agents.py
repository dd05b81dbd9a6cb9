"""Third-party agents, which are recorded and replayed without a change to their code.

Agents that need their own environment are tested by `make test-agents`, see docs/agents.md.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import json
from decimal import Decimal
from pathlib import Path

import pytest
from packaging.version import Version
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.providers.anthropic import AnthropicProvider

import agentobs
from tests.provider_script import streamed, text
from tests.replay.agents import KEY, MODEL
from tests.replay.raw_provider import play
from tests.replay.wire_recordings import recorded, replayed
from tests.third_party_agents import pydantic_agent, tool_runner
from tests.third_party_agents.installation import Resolution, Versions
from tests.third_party_agents.proof import REPLAYS, Proof, Refusal, Run, prove
from tests.third_party_agents.provider import Counts, Provider


@pytest.mark.slow
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
    assert dataclasses.replace(proof.store, interactions=1) == proof.provider


def test_a_proof_names_each_difference() -> None:
    """A count that the provider did not count, a failed replay and a late divergence each make the proof fail."""
    counted = Counts(requests=8, turns=7, tool_calls=7, interactions=1, cost_usd=Decimal("0.1"))
    proof = Proof(
        versions={},
        recorded_with="",
        sent=8,
        recorded=8,
        provider=counted,
        store=counted,
        matched=(8, 8),
        errors=("", ""),
        with_result=7,
        prompt="request 1, `$.messages`: the cause",
        tool="request 7, `$.messages`: the cause",
    )
    assert proof.problems() == []
    wrong = dataclasses.replace(
        proof,
        store=dataclasses.replace(counted, turns=6, cost_usd=Decimal("0.09")),
        matched=(8, 5),
        errors=("", "KeyError: 'x'"),
        prompt="no divergence",
        tool="request 8, `$.messages`: the cause",
    )
    assert wrong.problems() == [
        "replay: KeyError: 'x'",
        "the replays matched (8, 5) of 8 requests",
        "turns: the provider counted 7, recorded are 6",
        "cost_usd: the provider counted 0.1, recorded are 0.09",
        "the changed prompt gave no divergence, expected was request 1",
        "the changed tool result gave request 8, `$.messages`: the cause, expected was request 7",
    ]


def test_a_refusal_needs_a_warning_and_no_requests() -> None:
    """An agent that cannot be recorded must be warned, and a recorded request contradicts the warning."""
    nothing = Counts(requests=0, turns=0, tool_calls=0, interactions=0, cost_usd=Decimal())
    refusal = Refusal(
        versions={}, recorded_with="", provider=nothing, store=nothing, warning="saw no request"
    )
    assert refusal.problems() == []
    silent = dataclasses.replace(
        refusal, warning="", store=dataclasses.replace(nothing, requests=2)
    )
    assert silent.problems() == [
        "agentobs recorded no request and did not warn",
        "2 requests were recorded",
    ]


@pytest.mark.parametrize(
    ("together", "problem"),
    [
        ({"dspy": Version("3.10"), "openai": Version("1")}, ""),
        ({"dspy": Version("3.9"), "openai": Version("2")}, "dspy 3.10 becomes 3.9"),
        ({}, "dspy and agentobs cannot be installed together"),
    ],
)
def test_a_lowered_framework_is_a_problem(together: Versions, problem: str) -> None:
    """agentobs may lower the version of another package, as the table shows, but not the version of the framework."""
    found = Resolution("dspy", {"dspy": Version("3.10"), "openai": Version("2")}, together)
    assert found.problem() == problem
    assert found.lowered() == (["openai 2 to 1"] if not problem else [])


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("run", [tool_runner.run, tool_runner.run_sync], ids=["async", "sync"])
def test_the_fallback_for_a_provider_without_threads_replays(tmp_path: Path, run: Run) -> None:
    """If the provider rejects message threads, the rejection and the complete requests that follow it replay."""
    provider = Provider()
    fixture, proof = prove(functools.partial(run, thread=None), tmp_path, provider)
    assert provider.refused > 0
    assert proof.matched == (proof.recorded,) * REPLAYS
    assert [ask.answer.status for ask in fixture.requests].count(400) == provider.refused


@pytest.mark.slow
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
