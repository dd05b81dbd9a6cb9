"""Replays of agents that start sub-agents: each lane takes its recorded path in any schedule."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from anthropic import AsyncAnthropic

import agentobs
from agentobs.agent import (
    Abort,
    AgentDefinition,
    AgentOptions,
    Budget,
    BudgetLevel,
    Conversation,
    Event,
    SubAgent,
    ToolDispatch,
    ToolDone,
    finish,
    live_world,
    run,
    sub_agents,
    tool,
)
from agentobs.agent.agent_run import Run
from agentobs.agent.budget import Spent
from agentobs.agent.requests import budget_check
from agentobs.records.exchanges import Answer, ModelExchange, Recording
from agentobs.store.duckdb.connection import named
from replay import DivergenceError, Fixture, Replayer, ReplayOptions
from replay.freeze.conversion import freeze
from tests import queries
from tests.held_requests import hold
from tests.marks import mark_all_but_first
from tests.provider_script import MODEL, call, streamed, text
from tests.replay.agents import KEY, frozen, last_session
from tests.replay.agents import recorded as answered
from tests.replay.nested_agents import (
    ANYTHING,
    Ending,
    Noise,
    RandomProvider,
    by_lane,
    dig,
    have_same_path,
    serve_random_provider,
)


def recorded(
    home: Path, width: int, ending: Ending = "finish", stop_after_s: float | None = None
) -> tuple[Recording, dict[str, list[str]]]:
    """Record nested sub-agents live; return the recording and the events of each lane."""
    from agentobs.recording.session import start_recorder

    agentobs.stop_recorder()
    background_s = 0.3 if ending == "cancel" else 0.01
    with serve_random_provider(RandomProvider(width, width, background_s)) as url:
        start_recorder(str(home))
        try:
            events = asyncio.run(dig(url, None, ending, stop_after_s))
        finally:
            assert agentobs.stop_recorder()
    return last_session(home), by_lane(events)


def replayed(fixture: Fixture, seed: int, ending: Ending = "finish") -> dict[str, list[str]]:
    with Replayer(fixture) as replay:
        events = replay.run(dig, None, Noise(seed), ending)
    assert replay.progress.requests_matched == replay.progress.requests
    return by_lane(events)


@pytest.mark.slow
@pytest.mark.parametrize("width", mark_all_but_first((3, 1, 2, 4, 5, 6, 7, 8), pytest.mark.soak))
def test_concurrent_agents_replay_in_any_schedule(tmp_path: Path, width: int) -> None:
    """Nested agents that send identical requests concurrently replay in any schedule, each with its own responses."""
    recording, live = recorded(tmp_path / "home", width)
    firsts = [
        each.question.body
        for each in recording.exchanges
        if isinstance(each, ModelExchange) and each.place.lane.count("/") == 1
        if each.place.turn == 1 and each.place.lane != "main/b"
    ]
    assert len(firsts) == width
    assert len(set(firsts)) == 1
    assert max(lane.count("/") for lane in live) == 3
    fixture = frozen(tmp_path, recording, "crowd")
    for seed in range(13):
        assert replayed(fixture, seed) == live


@pytest.mark.slow
@pytest.mark.parametrize("width", mark_all_but_first([2, 5, 8], pytest.mark.soak))
@pytest.mark.parametrize("ending", ["cancel", "abort"])
def test_nested_agents_that_were_stopped_replay(tmp_path: Path, width: int, ending: Ending) -> None:
    """If background work or the complete run was stopped, each nested agent stops at its recorded place in the
    replay.
    """
    for number in range(2):
        after_s = random.Random(width + number).uniform(0, 0.15) if ending == "abort" else None
        recording, live = recorded(tmp_path / str(number), width, ending, after_s)
        fixture = frozen(tmp_path / str(number), recording, "crowd")
        for seed in range(2):
            assert replayed(fixture, seed, ending) == live, (number, seed)


START = sub_agents([AgentDefinition("scout", "Looks around.")])
On = Callable[[Event], None]


@tool(read_only=True)
def look(where: str) -> str:
    """Look somewhere."""
    return f"nothing in {where}"


@tool(read_only=True)
async def work() -> str:
    """Run forever."""
    await asyncio.Event().wait()
    return ""


class Chief:
    """An agent that starts sub-agents, with options for changes that a later version might make."""

    def __init__(self, url: str | None = None, **changes: Any) -> None:
        self.url, self.changes = url, changes
        self.events: list[Event] = []
        self.abort = Abort()

    async def answer(self, cancel: bool | None = None, abandon_at: type | None = None) -> None:
        """Run one interaction; then finish or cancel background work, or leave it running. With `abandon_at`, abandon
        the run at the first event of this kind.
        """
        client = agentobs.record(AsyncAnthropic(api_key=KEY, base_url=self.url, max_retries=0))
        if self.changes.get("holds"):
            hold(client, lambda lane: lane != "main", asyncio.Event())
        tools = (self.changes.get("look", look), work, START)
        world = live_world(client, tools, abort=self.abort)
        more = self.changes.get("options", {})
        options = AgentOptions(model=MODEL, max_tokens=99, permissions=ANYTHING, **more)
        on: On = self.changes.get("on", lambda event: None)
        conversation = Conversation()
        with agentobs.session("chief"):
            running = run(
                "Go", world=world, options=options, tools=tools, conversation=conversation
            )
            async with aclosing(running) as events:
                async for event in events:
                    self.events.append(event)
                    on(event)
                    if (
                        abandon_at
                        and isinstance(event, SubAgent)
                        and isinstance(event.event, abandon_at)
                    ):
                        break
            if cancel is not None:
                await finish(conversation, cancel=cancel)


def start(number: int, **more: Any) -> dict[str, Any]:
    return call(number, "agent", agent="scout", prompt="Look in the box.", **more)


def recorded_chief(
    tmp_path: Path, responses: Sequence[Answer], *arguments: Any, **changes: Any
) -> tuple[Fixture, Chief]:
    """Record and freeze one run; return the fixture, and the agent."""
    chiefs: list[Chief] = []

    def live(url: str) -> None:
        chiefs.append(Chief(url, **changes))
        asyncio.run(chiefs[0].answer(*arguments))

    return frozen(tmp_path, answered(tmp_path, live, responses), "chief"), chiefs[0]


def replayed_chief(fixture: Fixture, *arguments: Any, **changes: Any) -> Chief:
    chief = Chief(**changes)
    with Replayer(fixture) as replay:
        replay.run(chief.answer, *arguments)
    return chief


def test_agents_that_were_stopped_replay(tmp_path: Path) -> None:
    """Each agent of a run that was aborted stops at its recorded place, although nothing aborts the replay."""
    chief: list[Chief] = []
    responses = [
        streamed(start(1), start(2), number=1),
        streamed(call(3, "work"), number=2),
        streamed(call(3, "work"), number=3),
    ]
    seen: list[Event] = []

    def on(event: Event) -> None:
        if isinstance(event, SubAgent) and isinstance(event.event, ToolDispatch):
            seen.append(event)
            if len(seen) == 2:
                chief[0].abort.stop()

    def live(url: str) -> None:
        chief.append(Chief(url, on=on))
        asyncio.run(chief[0].answer())

    fixture = frozen(tmp_path, answered(tmp_path, live, responses), "chief")
    aborts = [each.lane for each in fixture.world if each.question.kind == "abort"]
    assert sorted(aborts) == ["main", "main/toolu_1", "main/toolu_2"]
    assert by_lane(replayed_chief(fixture).events) == by_lane(chief[0].events)


@pytest.mark.parametrize("request_count", [1, 2])
def test_abandoned_background_work_replays(tmp_path: Path, request_count: int) -> None:
    """Background work that the run abandoned replays up to the point that it had reached."""
    responses = [
        streamed(start(1, run_in_background=True), number=1),
        streamed(text("Done."), number=2),
        streamed(call(3, "work"), number=3),
    ]
    # If the sub-agent's request is held back, the script contains no response to it.
    fixture, live = recorded_chief(
        tmp_path, responses[: request_count + 1], holds=request_count == 1
    )
    assert fixture.interaction_results is not None
    assert fixture.interaction_results["main/toolu_1"][0] != "success"
    assert have_same_path(replayed_chief(fixture).events, live.events)


def test_the_wait_for_abandoned_background_work_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the agent now waits for background work that was abandoned in the recording, the replay diverges after a
    limited wait.
    """
    monkeypatch.setattr("replay.matching.world_answers.ABANDONED_WAIT_SECONDS", 0.05)
    at_work = asyncio.Event()

    @tool(read_only=True)
    async def toil(how: str) -> str:
        """Run forever; with `wait`, return as soon as another agent runs."""
        if how == "wait":
            await at_work.wait()
            return "at work"
        at_work.set()
        await asyncio.Event().wait()
        return ""

    responses = [
        streamed(start(1, run_in_background=True), call(2, "toil", how="wait"), number=1),
        streamed(call(3, "toil", how="work"), number=2),
        streamed(text("Done."), number=3),
    ]
    fixture, _ = recorded_chief(tmp_path, responses, look=toil)
    replayed_chief(fixture, look=toil)
    with pytest.raises(DivergenceError, match="the recording has no result for it"):
        replayed_chief(fixture, False, look=toil)


@pytest.mark.slow
def test_background_work_that_was_stopped_replays(tmp_path: Path) -> None:
    """Background work that `finish` stopped in the recording stops at the same point in the replay."""
    at_work = asyncio.Event()

    @tool(read_only=True)
    async def toil(how: str) -> str:
        """Run forever; with `wait`, return as soon as another agent runs."""
        if how == "wait":
            await at_work.wait()
            return "at work"
        at_work.set()
        await asyncio.Event().wait()
        return ""

    responses = [
        streamed(start(1, run_in_background=True), call(2, "toil", how="wait"), number=1),
        streamed(call(3, "toil", how="work"), number=2),
        streamed(text("Done."), number=3),
    ]
    fixture, live = recorded_chief(tmp_path, responses, True, look=toil)
    assert fixture.interaction_results is not None
    assert fixture.interaction_results["main/toolu_1"] == ["cancelled"]
    assert [a.question.key for a in fixture.world if a.question.kind == "abort"] == ["1:tools"]
    for _ in range(3):
        assert have_same_path(replayed_chief(fixture, True, look=toil).events, live.events)


def test_background_work_that_never_started_replays(tmp_path: Path) -> None:
    """Background work that was stopped before its first request was sent receives no response in the replay."""
    responses = [
        streamed(start(1, run_in_background=True), number=1),
        streamed(text("A"), number=2),
    ]
    fixture, live = recorded_chief(tmp_path, responses, True, holds=True)
    assert fixture.interaction_results is not None
    assert fixture.interaction_results["main/toolu_1"] == ["cancelled"]
    for _ in range(3):
        assert have_same_path(replayed_chief(fixture, True).events, live.events)


def test_an_abandoned_run_with_sub_agents_replays(tmp_path: Path) -> None:
    """A run with sub-agents that was abandoned at an event replays if it is abandoned at the same kind of event."""
    responses = [
        streamed(start(1), start(2), number=1),
        streamed(call(3, "look", where="box"), number=2),
        streamed(call(3, "look", where="bag"), number=3),
        streamed(text("A"), number=4),
        streamed(text("B"), number=5),
    ]
    fixture, _ = recorded_chief(tmp_path, responses, None, ToolDispatch)
    replayed_chief(fixture, None, ToolDispatch)


def test_the_progress_of_abandoned_agents_is_not_compared(tmp_path: Path) -> None:
    """A recorded request of an abandoned sub-agent may be missing in the replay, but not a request of the main
    agent.
    """
    responses = [
        streamed(start(1), start(2), number=1),
        streamed(call(3, "look", where="box"), number=2),
        streamed(call(3, "look", where="bag"), number=3),
        streamed(text("A"), number=4),
        streamed(text("B"), number=5),
    ]
    fixture, _ = recorded_chief(tmp_path, responses, None, ToolDispatch)
    for lane in ("main/toolu_1", "main"):
        last = next(ask for ask in reversed(fixture.requests) if ask.lane == lane)
        number = len(fixture.requests) + 1
        one_more = replace(last, number=number, shape={"body": {"messages": [], "n": number}})
        requests = [*fixture.requests, one_more]
        farther = Fixture(fixture.path, fixture.header, requests, fixture.tools, fixture.world)
        if lane == "main":
            with pytest.raises(DivergenceError, match="but the agent did not send this request"):
                replayed_chief(farther, None, ToolDispatch)
        else:
            replayed_chief(farther, None, ToolDispatch)


@pytest.mark.slow
def test_a_limit_is_reached_by_the_recorded_agent(tmp_path: Path) -> None:
    """If two agents share a budget, the agent that reached the limit first in the recording reaches it first in the
    replay.
    """
    looks = call(3, "look", where="box")
    responses = [streamed(start(1), start(2), number=1)]
    responses += [streamed(looks, number=number) for number in range(2, 8)]
    budget = Budget(interaction_usd=Decimal("0.0003"))
    fixture, live = recorded_chief(tmp_path, responses, options={"budget": budget})
    assert any(each.question.kind == "limit" for each in fixture.world)
    for _ in range(3):
        now = replayed_chief(fixture, options={"budget": budget})
        assert by_lane(now.events) == by_lane(live.events)


@pytest.mark.slow
def test_a_share_of_a_budget_is_reported_by_the_recorded_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent reports the share that it reached in the recording, and the recorded amount, even if other agents have
    used up the budget by then in the replay. Recordings without the amount report the share too.
    """
    responses = [
        streamed(start(1), start(2), number=1),
        *(
            streamed(call(3, "look", where=f"box {number}"), number=number)
            for number in range(2, 22)
        ),
        *(streamed(text("A"), number=number) for number in (22, 23, 24)),
    ]
    budget = Budget(interaction_usd=Decimal("0.00222"))
    fixture, live = recorded_chief(tmp_path, responses, options={"budget": budget})
    levels = [each for each in fixture.world if each.question.kind == "threshold" and each.answer]
    assert {each.lane for each in levels} & {"main/toolu_1", "main/toolu_2"}
    assert all(each.answer is None for each in fixture.world if each.question.kind == "limit")

    spent_so_far = budget_check._spent

    async def used_up(run: Run) -> Spent:
        spent = await spent_so_far(run)
        return spent if run.inputs.parent is None else replace(spent, interaction_usd=Decimal(1))

    monkeypatch.setattr(budget_check, "_spent", used_up)
    now = replayed_chief(fixture, options={"budget": budget})
    assert levels_by_lane(now) == levels_by_lane(live)
    assert levels_by_lane(live).keys() == {each.lane for each in levels}

    fixture.world = [
        replace(each, answer=each.answer[:2]) if each in levels else each for each in fixture.world
    ]
    old = replayed_chief(fixture, options={"budget": budget})
    assert shares_by_lane(old) == shares_by_lane(live)


def shares_by_lane(chief: Chief) -> dict[str, list[int]]:
    """Return the reported shares of the budget by lane, in percent."""
    return {
        lane: [level.percent for level in found] for lane, found in levels_by_lane(chief).items()
    }


def levels_by_lane(chief: Chief) -> dict[str, list[BudgetLevel]]:
    """Return the reported levels of the budget by lane."""
    levels: dict[str, list[BudgetLevel]] = {}
    for event in chief.events:
        lane, inner = (event.lane, event.event) if isinstance(event, SubAgent) else ("main", event)
        if isinstance(inner, BudgetLevel):
            levels.setdefault(lane, []).append(inner)
    return levels


def test_a_divergence_inside_an_agent_names_its_lane(tmp_path: Path) -> None:
    """A change in a sub-agent is reported for the lane of the sub-agent and not for the lane of its parent."""

    @tool(read_only=True, name="look")
    def stare(where: str) -> str:
        """Look somewhere."""
        return f"much in {where}"

    responses = [
        streamed(start(1), number=1),
        streamed(call(2, "look", where="box"), number=2),
        streamed(text("A"), number=3),
        streamed(text("Done."), number=4),
    ]
    fixture, _ = recorded_chief(tmp_path, responses)
    with (
        pytest.raises(DivergenceError) as raised,
        Replayer(fixture, ReplayOptions(tools="live")) as replay,
    ):
        replay.run(Chief(look=stare).answer)
    assert raised.value.divergence.lane == "main/toolu_1"
    assert "look" in raised.value.divergence.text()


@pytest.mark.slow
def test_a_divergence_in_the_background_is_raised(tmp_path: Path) -> None:
    """A divergence in background work fails the replay, although no agent waits for this work."""

    @tool(read_only=True, name="look")
    def stare(where: str) -> str:
        """Look somewhere."""
        return f"much in {where}"

    responses = [
        streamed(start(1, run_in_background=True), number=1),
        streamed(call(2, "look", where="box"), number=2),
        streamed(call(2, "look", where="box"), number=3),
        streamed(text("A"), number=4),
        streamed(text("B"), number=5),
    ]
    fixture, _ = recorded_chief(tmp_path, responses, False)
    with pytest.raises(DivergenceError), Replayer(fixture, ReplayOptions(tools="live")) as replay:
        replay.run(Chief(look=stare).answer, False)


def test_until_counts_the_turns_of_the_main_agent(tmp_path: Path) -> None:
    """The turn of `until` is a turn of the main agent: tools of sub-agents run live only during this turn."""
    looked: list[str] = []

    @tool(read_only=True, name="look")
    def stare(where: str) -> str:
        """Look somewhere."""
        looked.append(where)
        return f"much in {where}"

    responses = [
        streamed(start(1), number=1),
        streamed(call(2, "look", where="box"), number=2),
        streamed(call(3, "look", where="bag"), number=3),
        streamed(text("A"), number=4),
        streamed(call(4, "look", where="bin"), number=5),
        streamed(text("Done."), number=6),
    ]
    fixture, _ = recorded_chief(tmp_path, responses)
    with Replayer(fixture) as replay:
        step = replay.until(Chief(look=stare).answer, turn=2, tools="live")
    assert (looked, step.tool("look").text) == (["bin"], "much in bin")


def test_the_failing_turn_is_one_of_the_main_agent(tmp_path: Path) -> None:
    """The failing turn is a turn of the main agent, so a tool that failed in a sub-agent does not determine it."""
    responses = [
        streamed(text("Hm."), call(9, "look", where="bin"), number=1),
        streamed(start(1), number=2),
        streamed(call(2, "look"), number=3),
        streamed(text("A"), number=4),
        streamed(text("Done."), number=5),
    ]
    chief = []

    def live(url: str) -> None:
        chief.append(Chief(url))
        asyncio.run(chief[0].answer())

    failed = dataclasses.replace(answered(tmp_path, live, responses), outcome="failed")
    failure = freeze(failed, tmp_path / "chief", {}).failure
    assert failure is not None
    assert (failure.turn, failure.live_from) == (3, 1)


@pytest.mark.slow
def test_freezing_again_changes_nothing(tmp_path: Path) -> None:
    """A fixture and its trajectory do not depend on the order in which concurrent agents sent their requests."""
    recording, _ = recorded(tmp_path / "home", 3)
    first = frozen(tmp_path, recording, "crowd")
    data = first.path.read_bytes()
    freeze(recording, tmp_path / "crowd", {"anthropic": "test"})
    assert first.path.read_bytes() == data
    started = list(dict.fromkeys(ask.lane for ask in first.requests if ask.lane.count("/") <= 1))
    assert started == ["main", "main/t1_0", "main/t1_1", "main/t1_2", "main/b"]
    paths = set()
    for seed in range(3):
        with Replayer(first) as replay:
            replay.run(dig, None, Noise(seed))
        paths.add(replay.trajectory)
    assert len(paths) == 1


@pytest.mark.slow
def test_results_are_in_the_order_of_the_calls(tmp_path: Path) -> None:
    """The results of concurrent agents are in the order of their calls, in whatever order the agents end."""
    _, live = recorded(tmp_path / "home", 4)
    done = [each.split('"')[1] for each in live["main"] if each.startswith(ToolDone.__name__)]
    assert done[:5] == ["t1_0", "t1_1", "t1_2", "t1_3", "b"]


@pytest.mark.slow
def test_the_store_distinguishes_agents(tmp_path: Path) -> None:
    """In the store, calls and costs are grouped by lane and source, and the timeline shows each agent below its
    call.
    """
    responses = [
        streamed(start(1), start(2, run_in_background=True), number=1),
        *(streamed(text("A"), number=number) for number in (2, 3, 4)),
    ]
    recorded_chief(tmp_path, responses, False)
    home = tmp_path / "home"
    spent = queries.query("SELECT lane, calls FROM cost_by_agent ORDER BY lane", home=home)
    assert spent == [("main", 2), ("main/toolu_1", 1), ("main/toolu_2", 1)]
    sources = queries.query("SELECT source, calls FROM cost_by_source ORDER BY source", home=home)
    assert sources == [("main", 2), ("sub_agent", 2)]
    with agentobs.connect(home) as connection:
        [(session_id,)] = connection.execute("SELECT session_id FROM sessions").fetchall()
        found = named(connection, "session_timeline", session_id=session_id)
        columns = [column[0] for column in found.description or ()]
        rows = [dict(zip(columns, row, strict=True)) for row in found.fetchall()]
    calls = {r["depth"] for r in rows if (r["kind"], r["name"]) == ("tool_call", "agent")}
    agents = {
        (r["name"], r["lane"], r["depth"])
        for r in rows
        if r["kind"] == "span" and r["lane"] != "main" and r["name"] in ("sub_agent", "interaction")
    }
    assert calls == {2}
    assert agents == {("sub_agent", "main/toolu_1", 3), ("interaction", "main/toolu_2", 3)}
