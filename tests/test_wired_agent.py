"""Tests of agentobs.Agent, and of the checks that make a half-wired run impossible."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import aclosing
from decimal import Decimal
from pathlib import Path
from typing import Any

import anthropic
import pytest

import agentobs
from agentobs.agent import (
    AgentDefinition,
    Budget,
    BudgetReached,
    Consent,
    Conversation,
    Hook,
    Options,
    Reply,
    Result,
    Section,
    Steering,
    SubAgent,
    SystemPrompt,
    ToolDispatch,
    ToolDone,
    complete,
    live_world,
    run,
    tool,
)
from agentobs.errors import UsageError
from agentobs.world import World
from replay import Replayer, load
from replay.fixture.writer import write
from tests.agent.agent_runs import ALLOW_ALL, result_of
from tests.agent.provider import MODEL, Provider, call, message, streamed, text

DONE = streamed(message(text("Done.")))
PAID: list[str] = []


@tool
def pay(to: str) -> str:
    """Pay someone."""
    PAID.append(to)
    return f"paid {to}"


@tool(read_only=True)
def lookup(who: str) -> str:
    """Look someone up."""
    return f"{who} is known"


def refuse(payload: dict[str, Any]) -> dict[str, str]:
    return {"outcome": "blocking", "reason": "no payments"}


VETO = Hook("pre_tool_use", refuse)
PAYS = streamed(message(call("t1", "pay", to="Mallory"), stop_reason="tool_use"))
LOOKS_UP = streamed(message(call("t1", "lookup", who="Ann"), stop_reason="tool_use"))


@pytest.fixture(autouse=True)
def _nobody_paid() -> None:
    PAID.clear()


def options(**changes: Any) -> Options:
    return Options(**{"model": MODEL, "permissions": ALLOW_ALL, "cache": None, **changes})


def results(provider: Provider) -> list[Any]:
    return [block["content"] for block in provider.requests[-1]["messages"][-1]["content"]]


def refused_run(
    expected: str, *, world: Callable[[Any], World] | None = None, **arguments: Any
) -> None:
    """Check that a run of the lower-level functions is refused before a request is sent."""

    async def attempt(provider: Provider) -> None:
        async with provider.client() as client:
            here = live_world(client) if world is None else world(client)
            await complete("Go", world=here, **{"options": options(), **arguments})

    with Provider([PAYS, DONE]) as provider:
        with pytest.raises(UsageError, match=expected):
            asyncio.run(attempt(provider))
        assert provider.requests == []
    assert PAID == []


def test_an_agent_uses_its_tools_and_hooks() -> None:
    """Tools and hooks are given once; the veto of a hook reaches the call."""

    async def go(provider: Provider) -> tuple[Result, Result]:
        async with provider.client() as client:
            agent = agentobs.Agent(client, options=options(), tools=[pay, lookup], hooks=[VETO])
            first = await agent.run("Pay Mallory")
            return first, await agent.run("Thanks")

    with Provider([PAYS, DONE, DONE]) as provider:
        first, second = asyncio.run(go(provider))
        assert [len(each["messages"]) for each in provider.requests] == [1, 3, 5]
        assert "no payments" in provider.requests[1]["messages"][-1]["content"][0]["content"]
    assert (first.subtype, first.text, second.text, PAID) == ("success", "Done.", "Done.", [])


def test_hooks_given_to_the_options_only() -> None:
    """Hooks that the world does not have are refused; a veto is never lost."""
    refused_run(
        "the world cannot run these hooks of the options: code:1",
        world=lambda client: live_world(client, [pay]),
        options=options(hooks=(VETO,)),
        tools=[pay],
    )


def test_hooks_given_to_the_world_only() -> None:
    """Hooks that the options do not have are refused; a veto is never lost."""
    refused_run(
        "the options do not contain these hooks of the world: code:1",
        world=lambda client: live_world(client, [pay], hooks=[VETO]),
        tools=[pay],
    )


def test_different_hooks_with_the_same_name() -> None:
    """Two different hooks that get the same name are not confused."""
    refused_run(
        "the world cannot run these hooks of the options: code:1",
        world=lambda client: live_world(client, [pay], hooks=[Hook("pre_tool_use", print)]),
        options=options(hooks=(VETO,)),
        tools=[pay],
    )


def test_a_bare_world_vetoes_what_its_hooks_cannot_check() -> None:
    """In a world that runs no hooks, a hook that could veto a call denies it."""

    async def go(provider: Provider) -> Result:
        async with provider.client() as client:
            ready = live_world(client, [pay])
            bare = World(client=client, run_tool=ready.run_tool)
            return await complete("Go", world=bare, options=options(hooks=(VETO,)), tools=[pay])

    with Provider([PAYS, DONE]) as provider:
        asyncio.run(go(provider))
        assert "this world does not run hooks" in results(provider)[0]
    assert PAID == []


def test_a_hook_without_a_name_runs_in_the_lower_level_functions() -> None:
    """The same hooks, given to both sides without a table, run."""

    async def go(provider: Provider) -> Result:
        async with provider.client() as client:
            world = live_world(client, [pay], hooks=[VETO])
            return await complete("Go", world=world, options=options(hooks=(VETO,)), tools=[pay])

    with Provider([PAYS, DONE]) as provider:
        asyncio.run(go(provider))
        assert "no payments" in results(provider)[0]
    assert PAID == []


def test_tools_given_to_the_run_only() -> None:
    """Tools that the world cannot run are refused before the model is told of them."""
    refused_run("the world cannot run these tools of the run: pay", tools=[pay])


def test_tools_given_to_the_world_only() -> None:
    """Tools that the model would not know are refused."""
    refused_run(
        "the model would not know these tools of the world: lookup, pay",
        world=lambda client: live_world(client, [pay, lookup]),
    )


def test_sections_and_daily_budget_given_to_one_side_only() -> None:
    """A section without its function, and a daily budget without an amount spent, are refused."""
    volatile = SystemPrompt(
        default=(Section("news", lambda: "News.", volatile=True, reason="it changes"),)
    )
    refused_run("no function for the section news", options=options(system=volatile))
    daily = Budget(day_usd=Decimal(1))
    refused_run("cannot read what was spent today", options=options(budget=daily))


SYNC = anthropic.Anthropic(api_key="made-up")


@pytest.mark.parametrize(
    ("client", "expected"),
    [
        (
            SYNC,
            "Anthropic is a sync client. Pass an anthropic.AsyncAnthropic, or the async client of the same platform",
        ),
        (None, "NoneType is not a client"),
        ("key", "str is not a client"),
        (anthropic.AsyncAnthropic, "AsyncAnthropic is a class, not a client"),
    ],
)
def test_a_client_of_the_wrong_kind(client: Any, expected: str) -> None:
    """A sync client, and anything that is no client, are refused with one error by each way to start a run."""
    with pytest.raises(UsageError, match=expected):
        agentobs.Agent(client, options=options())
    with pytest.raises(UsageError, match=expected):
        live_world(client)
    bare = World(client=client, run_tool=print)  # type: ignore[arg-type]  # no tool is called
    with pytest.raises(UsageError, match=expected):
        asyncio.run(complete("Go", world=bare, options=options()))


def test_a_closed_client() -> None:
    """A closed client is refused, whether it was closed before the agent was created or afterwards."""

    async def go(provider: Provider) -> None:
        client = provider.client()
        agent = agentobs.Agent(client, options=options())
        await client.close()
        with pytest.raises(UsageError, match="the client is closed"):
            await agent.run("Go")
        with pytest.raises(UsageError, match="the client is closed"):
            agentobs.Agent(client, options=options())

    with Provider([]) as provider:
        asyncio.run(go(provider))


def test_two_runs_of_one_conversation() -> None:
    """A second run of a conversation in use is refused; after the first has ended, it is not."""

    async def go(provider: Provider) -> None:
        async with provider.client() as client:
            world, conversation = live_world(client), Conversation()
            both: dict[str, Any] = {
                "world": world,
                "options": options(),
                "conversation": conversation,
            }
            async with aclosing(run("One", **both)) as events:
                await anext(events)
                with pytest.raises(UsageError, match="another run of this conversation"):
                    await complete("Two", **both)
            assert (await complete("Three", **both)).text == "Done."

    with Provider([DONE, DONE]) as provider:
        asyncio.run(go(provider))
        assert [each["messages"][-1]["content"] for each in provider.requests][-1] != "Two"


def test_two_runs_of_one_agent() -> None:
    """An agent serves one run at a time; `fresh` returns another agent for a concurrent conversation."""

    async def go(provider: Provider) -> None:
        async with provider.client() as client:
            agent = agentobs.Agent(client, options=options())
            async with aclosing(agent.stream("One")) as events:
                await anext(events)
                with pytest.raises(UsageError, match="the agent is already running"):
                    await agent.run("Two")
                with pytest.raises(UsageError, match="the agent is already running"):
                    await agent.end()
                assert (await agent.fresh().run("Three")).text == "Done."

    with Provider([DONE, DONE]) as provider:
        asyncio.run(go(provider))


def test_a_run_is_bounded() -> None:
    """By default, a run ends after eight turns that repeat the same invalid call, and after a hundred turns."""
    invalid = streamed(message(call("t1", "lookup", whom="Ann"), stop_reason="tool_use"))
    varied = [
        streamed(message(call(f"t{n}", "lookup", who=f"{n}"), stop_reason="tool_use"))
        for n in range(101)
    ]

    async def go(provider: Provider) -> list[Any]:
        async with provider.client() as client:
            agent = agentobs.Agent(client, options=options(), tools=[lookup])
            return [event async for event in agent.stream("Go")]

    with Provider([invalid] * 136) as provider:
        events = asyncio.run(go(provider))
        assert len(provider.requests) == 8
    result = result_of(events)
    assert (result.subtype, result.terminal_reason) == ("error_max_turns", "max_turns")
    assert result.error_text == "8 turns in a row made the same calls and got the same results"
    assert BudgetReached("repeated_calls", continues=False) in events
    with Provider(varied) as provider:
        assert result_of(asyncio.run(go(provider))).subtype == "error_max_turns"
        assert len(provider.requests) == 100


def test_other_results_are_no_repetition() -> None:
    """A tool that is polled with the same input is not a repetition if its results differ."""
    count = iter(range(1, 100))

    @tool(read_only=True)
    def poll() -> str:
        """Return the progress."""
        return f"{next(count)} %"

    polls = streamed(message(call("t1", "poll"), stop_reason="tool_use"))

    async def go(provider: Provider) -> Result:
        async with provider.client() as client:
            return await agentobs.Agent(client, options=options(), tools=[poll]).run("Go")

    with Provider([*[polls] * 12, DONE]) as provider:
        assert asyncio.run(go(provider)).subtype == "success"


@tool(name="lookup")
def other_lookup(name: str) -> str:
    """Look someone up elsewhere."""
    return name


HELPER = AgentDefinition("helper", "Helps.")
AT_LIMIT = Budget(interaction_usd=Decimal(1), at_limit="ask")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"tools": [lookup, lookup]}, "'lookup' is already the name"),
        ({"tools": [lookup, other_lookup]}, "'lookup' is already the name"),
        ({"tools": [refuse]}, "tools: refuse is not a Tool. Create it with @agentobs.agent.tool"),
        ({"hooks": [VETO, VETO]}, "the same hook is given twice: pre_tool_use"),
        ({"hooks": [refuse]}, "is not a hook"),
        ({"hooks": [VETO], "options": options(hooks=(VETO,))}, "hooks were given twice"),
        ({"sub_agents": [HELPER, HELPER]}, "two agents are named helper"),
        ({"sub_agents": ["helper"]}, "str is not a AgentDefinition"),
        ({"sub_agents": [AgentDefinition("a", "b", tools=("x",))]}, "unknown tools: x"),
        ({"options": MODEL}, "the options have the type str"),
        ({"options": options(max_turns=0)}, "0 is not a number of turns"),
        ({"options": options(fallback_model=MODEL)}, "is its own fallback"),
        ({"options": options(stream=False, max_tokens=64_000)}, "too many without streaming"),
        ({"options": options(model=" ")}, "there is no model"),
        ({"options": options(budget=AT_LIMIT)}, "nobody can be asked at a limit"),
    ],
)
def test_bad_input(arguments: dict[str, Any], expected: str) -> None:
    """Whatever cannot be used together is refused with one error when the agent is created."""
    with pytest.raises(UsageError, match=expected):
        agentobs.Agent(
            anthropic.AsyncAnthropic(api_key="made-up"), **{"options": options(), **arguments}
        )


def test_a_hook_for_an_event_that_does_not_exist() -> None:
    """A hook for an unknown event is refused when it is created."""
    with pytest.raises(UsageError, match="'before_tool' is not a hook event"):
        Hook("before_tool", refuse)  # type: ignore[arg-type]  # an event that does not exist


def test_run_sync() -> None:
    """Without an event loop, several runs use one client, and the end of the block runs the hooks for the end."""
    ended: list[dict[str, Any]] = []
    with Provider([LOOKS_UP, DONE, DONE]) as provider:
        hook = Hook("session_end", ended.append)
        with agentobs.Agent(
            provider.client(), options=options(), tools=[lookup], hooks=[hook]
        ) as agent:
            assert [agent.run_sync("One").text, agent.run_sync("Two").text] == ["Done.", "Done."]
            assert ended == []
        assert [len(each["messages"]) for each in provider.requests] == [1, 3, 5]
    assert [each["event"] for each in ended] == ["session_end"]


def test_run_sync_in_an_event_loop() -> None:
    """In an event loop, `run_sync` is refused with the method to use instead."""

    async def go(provider: Provider) -> None:
        agent = agentobs.Agent(provider.client(), options=options())
        with pytest.raises(UsageError, match=r"an event loop is running.*await agent.run"):
            agent.run_sync("Go")

    with Provider([]) as provider:
        asyncio.run(go(provider))


def test_abort_steer_and_follow_up() -> None:
    """Messages reach the current run; after an abort, the agent can run again."""

    async def go(provider: Provider) -> list[Any]:
        async with provider.client() as client:
            agent = agentobs.Agent(client, options=options(), tools=[lookup])
            agent.abort()  # nothing is running
            agent.follow_up("And then?")
            events: list[Any] = []
            async for event in agent.stream("Go"):
                events.append(event)
                if isinstance(event, ToolDispatch):
                    agent.steer("Hurry")
            async for event in agent.stream("Again"):
                events.append(event)
                if isinstance(event, ToolDone):
                    threading.Thread(target=agent.abort).start()
                    await asyncio.sleep(0.05)
            events.append(await agent.run("Once more"))
            return events

    with Provider([LOOKS_UP, DONE, DONE, LOOKS_UP, DONE]) as provider:
        events = asyncio.run(go(provider))
    assert [e.texts for e in events if isinstance(e, Steering)] == [("Hurry",)]
    ends = [event.terminal_reason for event in events if isinstance(event, Result)]
    assert ends == ["completed", "aborted_tools", "completed"]


def test_a_person_and_a_sub_agent() -> None:
    """A person approves calls, and the model starts a sub-agent."""
    asked: list[Consent] = []

    def person(consent: Consent) -> Reply:
        asked.append(consent)
        return Reply(True)

    starts = call("s1", "agent", agent="helper", prompt="Help")

    async def go(provider: Provider) -> list[Any]:
        async with provider.client() as client:
            agent = agentobs.Agent(
                client,
                options=Options(MODEL, cache=None),
                tools=[pay],
                sub_agents=[HELPER],
                person=person,
            )
            return [event async for event in agent.stream("Pay Ann, and get help")]

    both = streamed(message(call("t1", "pay", to="Ann"), starts, stop_reason="tool_use"))
    with Provider([both, streamed(message(text("Helped."))), DONE]) as provider:
        events = asyncio.run(go(provider))
    assert result_of(events).text == "Done."
    assert (PAID, len(asked)) == (["Ann"], 1)
    assert any(isinstance(event, SubAgent) for event in events)


def test_sessions_are_resumed_forked_and_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent continues a recorded session by its ID; a fork leaves out later turns; its recording replays.

    An agent that already has a conversation cannot resume another one.
    """
    from agentobs.recording.journal.home import open_home
    from agentobs.recording.journal.segments import segment_ids
    from agentobs.recording.vault.vault import read_session

    monkeypatch.setenv("AGENTOBS_HOME", str(tmp_path / "home"))
    agentobs.stop_recorder()

    async def ask(
        provider: Provider, prompts: list[str], begin: Callable[[agentobs.Agent], Any]
    ) -> str:
        async with provider.client() as client:
            agent = agentobs.Agent(agentobs.record(client), options=options(), tools=[lookup])
            begin(agent)
            with agentobs.session("people") as session:
                for prompt in prompts:
                    assert (await agent.run(prompt)).text == "Done."
            with pytest.raises(UsageError, match="already has a conversation"):
                agent.resume("people")
            return session.session_id

    with Provider([LOOKS_UP, DONE, DONE, DONE, DONE]) as provider:
        first = asyncio.run(ask(provider, ["One", "Two"], lambda agent: agent))
        assert agentobs.stop_recorder()
        asyncio.run(ask(provider, ["Three"], lambda agent: agent.resume(first)))
        assert agentobs.stop_recorder()
        fork = asyncio.run(ask(provider, ["Else"], lambda agent: agent.fork(first, turn=2)))
        assert agentobs.stop_recorder()
        sent = [
            [each["content"] for each in request["messages"] if isinstance(each["content"], str)]
            for request in provider.requests
        ]
    assert sent[-2:] == [["One", "Two", "Three"], ["One", "Else"]]
    home = open_home(str(tmp_path / "home"))
    (tmp_path / "fork").mkdir()
    written = write(read_session(home, fork, segment_ids(home)), {})
    (tmp_path / "fork" / "recording.jsonl").write_bytes(written)
    with Provider([]) as provider, Replayer(load(tmp_path / "fork")) as replayed:
        replayed.run(ask, provider, ["Else"], lambda agent: agent.fork(first, turn=2))
