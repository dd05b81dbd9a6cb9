"""Lanes of clients that do not report their structure: real agents, recorded at their HTTP clients.

Sub-agents are lanes of the interaction that started them; independent conversations are separate interactions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from anthropic import Anthropic, AsyncAnthropic

import agentobs
from agentobs.recording.facts.sub_agent_starts import NOTED_NS
from replay import Replayer
from tests import queries
from tests.recording.lane_agents import (
    KEY,
    AsyncAgents,
    Run,
    TripProvider,
    request,
    run_tasks,
    run_threads,
)
from tests.replay.agents import frozen, last_session
from tests.replay.raw_provider import raw_provider
from tests.replay.wire_recordings import NOWHERE, recording
from tests.third_party_agents import pydantic_agent, tool_runner
from tests.third_party_agents.provider import Provider, call_id


class Shape(NamedTuple):
    """The structure of a session: its interactions, and the turns of each lane and interaction."""

    interactions: list[tuple[str, str]]
    """The lane and the result of each interaction."""
    turns: dict[tuple[int, str], list[int]]
    """The turns of each interaction, counted from 0, and lane."""


ATTEMPTS = """
    SELECT interaction_id, lane, turn, query_source
    FROM attempts WHERE outcome = 'ok' ORDER BY started_ns, attempt_id
"""


def shape_of(home: Path) -> Shape:
    """Return the structure of the only session of a home; check that no duration is negative."""
    started = rows(
        home,
        "SELECT interaction_id, lane, result, duration_ns FROM interactions ORDER BY started_ns",
    )
    assert all(duration_ns >= 0 for *_, duration_ns in started)
    ids = [interaction_id for interaction_id, *_ in started]
    turns: dict[tuple[int, str], list[int]] = {}
    for interaction_id, lane, turn, query_source in rows(home, ATTEMPTS):
        turns.setdefault((ids.index(interaction_id), lane), []).append(turn)
        assert query_source == ("sub_agent" if "/" in lane else "main")
    assert rows(home, "SELECT * FROM spans WHERE duration_ns < 0") == []
    return Shape([(lane, result) for _, lane, result, _ in started], turns)


def rows(home: Path, sql: str) -> list[tuple[Any, ...]]:
    """Return the rows of a query."""
    return [tuple(row) for row in queries.query(sql, home=home)]


def recorded(tmp_path: Path, run: Run, provider: Any = None) -> Shape:
    """Record an agent, and return the structure of its session."""
    provider = provider or TripProvider()
    with raw_provider([provider.play] * 40) as raw, recording(tmp_path / "home"):
        run(raw.url)
    return shape_of(tmp_path / "home")


TRIP = Shape(
    [("main", "success")],
    {(0, "main"): [1, 2], (0, "main/toolu_1_0"): [1, 2], (0, "main/toolu_1_1"): [1, 2]},
)
"""One interaction with two sub-agents, each named after its call."""


@pytest.mark.slow
@pytest.mark.parametrize("overloaded", [(), ("Study Rome",), ("Study Rome", "Plan a trip")])
def test_parallel_sub_agents_are_lanes_of_one_interaction(
    tmp_path: Path, overloaded: Sequence[str]
) -> None:
    """Two concurrent sub-agents have their own lanes; a rejected request does not change this."""
    provider = TripProvider(overloaded)
    found = recorded(tmp_path, lambda url: run_tasks(url, "Plan a trip"), provider)
    assert sorted(found.turns.values()) == [[1, 2]] * 3
    assert (found.interactions, len(found.turns)) == (TRIP.interactions, 3)
    if "Plan a trip" not in overloaded:
        assert found == TRIP


@pytest.mark.slow
def test_sub_agents_of_frameworks_with_many_tasks_are_lanes(tmp_path: Path) -> None:
    """A framework may send each request, and run each set of tools, in tasks that end before the next step."""
    run = partial(run_tasks, in_steps=True)
    assert recorded(tmp_path, lambda url: run(url, "Plan a trip")) == TRIP


@pytest.mark.slow
@pytest.mark.parametrize("threads", [False, True], ids=["sequential", "threads"])
def test_sub_agents_of_threads_are_lanes_of_one_interaction(tmp_path: Path, threads: bool) -> None:
    """It does not matter whether sub-agents run in a pool of threads or one after another."""
    assert recorded(tmp_path, lambda url: run_threads(url, "Plan a trip", threads=threads)) == TRIP


@pytest.mark.slow
@pytest.mark.parametrize("threads", [None, False, True], ids=["tasks", "sequential", "threads"])
def test_nested_sub_agents_are_nested_lanes(tmp_path: Path, threads: bool | None) -> None:
    """A sub-agent of a sub-agent is a lane below its lane, in the same interaction."""
    start = partial(run_threads, threads=threads) if threads is not None else run_tasks
    found = recorded(tmp_path, lambda url: start(url, "Plan a long trip", tools=("delegate",)))
    assert found == Shape(
        [("main", "success")],
        {
            (0, "main"): [1, 2],
            (0, "main/toolu_1_0"): [1, 2],
            (0, "main/toolu_1_0/toolu_2_0"): [1, 2],
            (0, "main/toolu_1_0/toolu_2_1"): [1, 2],
        },
    )


@pytest.mark.slow
@pytest.mark.parametrize("threads", [None, False, True], ids=["tasks", "sequential", "threads"])
def test_equal_prompts_of_sub_agents_have_their_own_lanes(
    tmp_path: Path, threads: bool | None
) -> None:
    """Sub-agents with the same prompt are identified by the responses that they continue."""
    start = partial(run_threads, threads=threads) if threads is not None else run_tasks
    found = recorded(tmp_path, lambda url: start(url, "Plan one trip twice"))
    assert found.interactions == [("main", "success")]
    assert sorted(found.turns.values()) == [[1, 2]] * 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tools", "in_steps"),
    [((), False), (("ask",), False), (("ask",), True)],
    ids=["answers", "agents", "agents with many tasks"],
)
def test_independent_conversations_are_separate_interactions(
    tmp_path: Path, tools: Sequence[str], in_steps: bool
) -> None:
    """Concurrent prompts of one task are separate interactions, whether or not they use tools."""
    prompts = ("Plan a trip", "Study Rome", "Plan one trip twice")
    run = partial(run_tasks, tools=tools, in_steps=in_steps)
    found = recorded(tmp_path, lambda url: run(url, *prompts))
    assert found.interactions == [("main", "success")] * 3
    in_main = [number for number, lane in found.turns if lane == "main"]
    assert sorted(in_main) == [0, 1, 2]
    assert len(found.turns) == (3 if not tools else 3 + 2 + 2)


@pytest.mark.slow
@pytest.mark.parametrize("in_own_task", [True, False], ids=["two tasks", "task and parent"])
def test_a_delayed_conversation_is_not_a_sub_agent(tmp_path: Path, in_own_task: bool) -> None:
    """A conversation is independent of a tool call that is open when it starts, if its task was started before."""

    async def run_all(agents: AsyncAgents) -> None:
        is_called, is_answered = asyncio.Event(), asyncio.Event()
        run = agents.run

        async def late() -> None:
            await is_called.wait()
            await agents.answer("What is the time?")
            is_answered.set()

        async def noted(tool: str, text: str) -> str:
            is_called.set()
            await is_answered.wait()
            # The job of this conversation ends later than its end could be noted after the other request.
            await asyncio.sleep(2 * NOTED_NS / 1e9)
            return await run(tool, text)

        agents.run = noted  # type: ignore[method-assign]
        other = asyncio.create_task(late())
        answer = agents.answer("Study Rome", "look")
        await (asyncio.create_task(answer) if in_own_task else answer)
        await other

    def run(url: str) -> None:
        agents = AsyncAgents(agentobs.record(AsyncAnthropic(api_key=KEY, base_url=url)))
        with agentobs.session("trips"):
            asyncio.run(run_all(agents))

    found = recorded(tmp_path, run)
    assert found.interactions == [("main", "success")] * 2
    assert {lane for _, lane in found.turns} == {"main"}


@pytest.mark.slow
def test_the_next_prompt_of_a_conversation_is_a_new_interaction(tmp_path: Path) -> None:
    """A prompt after a final answer opens an interaction; the turns of the lane continue."""

    def run(url: str) -> None:
        client = agentobs.record(Anthropic(api_key=KEY, base_url=url))
        first = request("What is the time?")
        with agentobs.session("chat"):
            answer = client.messages.create(**first).content[0].to_dict()
            later = [
                {"role": "assistant", "content": [answer]},
                {"role": "user", "content": "Now?"},
            ]
            client.messages.create(**{**first, "messages": [*first["messages"], *later]})
            client.messages.create(**request("And who are you?"))

    found = recorded(tmp_path, run)
    turns = {(0, "main"): [1], (1, "main"): [2], (2, "main"): [3]}
    assert found == Shape([("main", "success")] * 3, turns)


@pytest.mark.slow
def test_an_abandoned_call_does_not_start_the_next_conversation(tmp_path: Path) -> None:
    """A client may use a tool call as its final answer. The next prompt of the same code is a new interaction."""

    def run(url: str) -> None:
        client = agentobs.record(Anthropic(api_key=KEY, base_url=url))
        with agentobs.session("extraction"):
            for prompt in ("Study Rome", "Study Oslo"):
                client.messages.create(**request(prompt, "look"))

    found = recorded(tmp_path, run)
    turns = {(0, "main"): [1], (1, "main"): [2]}
    assert found == Shape([("main", "interrupted")] * 2, turns)


def test_side_requests_are_not_turns(tmp_path: Path) -> None:
    """A probe and a token count in the middle of an interaction are neither turns nor prompts."""

    def run(url: str) -> None:
        client = agentobs.record(Anthropic(api_key=KEY, base_url=url, max_retries=0))
        sent = request("Study Rome", "look")
        with agentobs.session("trip"):
            client.messages.create(**{**request("quota"), "max_tokens": 1})
            message = client.messages.create(**sent)
            client.messages.create(**{**request("quota"), "max_tokens": 1})
            client.messages.count_tokens(model=sent["model"], messages=sent["messages"])
            block = message.content[0]
            assert block.type == "tool_use"
            result = {"type": "tool_result", "tool_use_id": block.id, "content": "sun"}
            later = [
                {"role": "assistant", "content": [block.to_dict()]},
                {"role": "user", "content": [result]},
            ]
            client.messages.create(**{**sent, "messages": [*sent["messages"], *later]})

    provider = TripProvider()
    with raw_provider([provider.play] * 5) as raw, recording(tmp_path / "home"):
        run(raw.url)
    home = tmp_path / "home"
    found = rows(
        home,
        "SELECT turn, makes_turns, query_source, interaction_id IS NOT NULL "
        "FROM attempts ORDER BY started_ns",
    )
    assert found == [
        (None, False, "side", False),
        (1, True, "main", True),
        (None, False, "side", True),
        (None, False, "main", True),
        (2, True, "main", True),
    ]
    assert rows(home, "SELECT result FROM interactions") == [("success",)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "module", [pydantic_agent, tool_runner], ids=["pydantic-ai", "tool runner"]
)
def test_agents_of_frameworks_are_lanes_of_one_interaction(tmp_path: Path, module: Any) -> None:
    """Two parallel sub-agents of a framework are two lanes next to the main lane; there is one trace."""
    if module is pydantic_agent:
        pytest.importorskip("pydantic_ai")
    found = recorded(tmp_path, module.run, Provider())
    lanes = ["main", *(f"main/{call_id(f'ask_{topic}')}" for topic in ("desert", "mountain"))]
    assert found.interactions == [("main", "success")]
    assert {lane: turns for (_, lane), turns in found.turns.items()} == dict(
        zip(lanes, ([1, 2, 3], [1, 2], [1, 2]), strict=True)
    )
    assert rows(tmp_path / "home", "SELECT count(DISTINCT trace_id) FROM spans") == [(1,)]


@pytest.mark.slow
@pytest.mark.parametrize("prompt", ["Plan a trip", "Plan one trip twice"])
def test_sessions_with_derived_lanes_replay(tmp_path: Path, prompt: str) -> None:
    """A frozen session with parallel sub-agents of a foreign client replays ten times out of ten."""
    provider = TripProvider()
    with raw_provider([provider.play] * 20) as raw, recording(tmp_path / "home"):
        live = run_tasks(raw.url, prompt)
    fixture = frozen(tmp_path, last_session(tmp_path / "home"), "trips")
    assert {each.lane for each in fixture.requests} == {"main"}
    for _ in range(10):
        with Replayer(fixture) as replay:
            assert replay.run(run_tasks, NOWHERE, prompt) == live
        assert replay.progress.requests_matched == len(fixture.requests) == 6
