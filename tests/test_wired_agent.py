"""Tests of agentobs.Agent, and of the checks that make a half-wired run impossible."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import anthropic
import pytest

import agentobs
from agentobs.agent import (
    AgentDefinition,
    AgentOptions,
    Budget,
    BudgetReached,
    Consent,
    Context,
    Conversation,
    Hook,
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
    preset,
    run,
    tool,
)
from agentobs.agent.budget import Spent, reached
from agentobs.agent.hooks import table
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


def find(who: str) -> str:
    """Find someone."""
    return f"{who} was found"


def refuse(payload: dict[str, Any]) -> dict[str, str]:
    return {"outcome": "blocking", "reason": "no payments"}


VETO = Hook("pre_tool_use", refuse)
PAYS = streamed(message(call("t1", "pay", to="Mallory"), stop_reason="tool_use"))
LOOKS_UP = streamed(message(call("t1", "lookup", who="Ann"), stop_reason="tool_use"))


@pytest.fixture(autouse=True)
def _nobody_paid() -> None:
    PAID.clear()


def options(**changes: Any) -> AgentOptions:
    return AgentOptions(**{"model": MODEL, "permissions": ALLOW_ALL, "cache": None, **changes})


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
    """Tools that the world cannot run are refused before the model receives their declarations."""
    refused_run("the world cannot run these tools of the run: pay", tools=[pay])


def test_tools_given_to_the_world_only() -> None:
    """Tools that the model would not know are refused."""
    refused_run(
        "the model would not know these tools of the world: lookup, pay",
        world=lambda client: live_world(client, [pay, lookup]),
    )


def test_a_fallback_given_to_the_world_only() -> None:
    """The fallback of a tool must be among the tools of the run, because its calls are decided there."""
    search = tool(read_only=True, withdraw_after=1, fallback=lookup)(find)
    world = live_world(anthropic.AsyncAnthropic(api_key="made-up"), [search, lookup])
    with pytest.raises(UsageError, match="there is no tool 'lookup'"):
        asyncio.run(complete("Go", world=world, options=options(), tools=[search]))


def test_other_tools_with_the_same_names() -> None:
    """Tools of the run that are declared differently than those of the world are refused, although the names match."""
    refused_run(
        "the world has other tools with these names: lookup",
        world=lambda client: live_world(client, [pay, lookup]),
        tools=[pay, other_lookup],
    )


def test_equal_declarations_are_the_same_tools() -> None:
    """Only declarations are compared: the run may be given another object that is declared identically."""
    calls: list[str] = []

    def again(who: str) -> str:
        """Look someone up."""
        calls.append(who)
        return "known"

    async def go(provider: Provider) -> Result:
        async with provider.client() as client:
            world = live_world(client, [tool(name="lookup", read_only=True)(again)])
            return await complete("Go", world=world, options=options(), tools=[lookup])

    with Provider([LOOKS_UP, DONE]) as provider:
        assert asyncio.run(go(provider)).text == "Done."
        assert results(provider) == ["known"]
    assert calls == ["Ann"]


def test_options_build_the_table_of_hooks() -> None:
    """However hooks are given to the options, they become a table, in which each has its own name."""
    other = Hook("stop", refuse)
    for hooks in ((VETO, other), [VETO, other], table((VETO, other))):
        built = options(hooks=hooks).hooks
        assert isinstance(built, tuple)
        assert [hook.name for hook in built] == ["code:1", "code:2"]
        assert replace(options(hooks=hooks), max_turns=3).hooks == built
    with pytest.raises(UsageError, match="the same hook is given twice"):
        options(hooks=(VETO, VETO))


def test_asking_at_a_limit_without_a_person() -> None:
    """A world without a person cannot run a budget that asks at its limit; a world with a person can."""
    refused_run("no person can be asked at a limit", options=options(budget=AT_LIMIT))

    async def go(provider: Provider) -> Result:
        async with provider.client() as client:
            world = live_world(client, person=lambda _: True)
            return await complete("Go", world=world, options=options(budget=ASK_AT_TURNS))

    with Provider([DONE]) as provider:
        assert asyncio.run(go(provider)).text == "Done."


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
    """A sync client, and anything that is not a client, are refused with one error by each way to start a run."""
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


@pytest.mark.slow
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


async def repeat(provider: Provider, send: str) -> Result:
    """Run an agent that ends after three equal turns, and send it a message during its second turn."""
    async with provider.client() as client:
        limits = Budget(repeated_turns=3)
        agent = agentobs.Agent(client, options=options(budget=limits), tools=[lookup])
        events = [event async for event in _sending(agent, send)]
        return result_of(events)


async def _sending(agent: agentobs.Agent, send: str) -> AsyncIterator[Any]:
    count = 0
    async for event in agent.stream("Go"):
        count += isinstance(event, ToolDispatch)
        if isinstance(event, ToolDispatch) and count == 2:
            getattr(agent, send)("Look again")
        yield event


@pytest.mark.parametrize(
    ("send", "replies", "sent"),
    [
        ("steer", [LOOKS_UP] * 9, 5),
        ("follow_up", [LOOKS_UP, LOOKS_UP, DONE, *[LOOKS_UP] * 6], 6),
    ],
)
def test_a_message_restarts_the_count_of_repeated_turns(
    send: str, replies: list[Any], sent: int
) -> None:
    """After a message from a person, the agent may repeat its calls as often as at the beginning."""
    with Provider(replies) as provider:
        result = asyncio.run(repeat(provider, send))
        assert len(provider.requests) == sent  # 3 without the message
    assert result.error_text == "3 turns in a row made the same calls and got the same results"


def test_an_allowed_limit_does_not_hide_another_one() -> None:
    """After a person has allowed the run to exceed one limit, the other limits still apply."""
    asked: list[str] = []

    def person(consent: Consent) -> bool:
        asked.append(consent.about["limit"])
        return consent.about["limit"] == "session_turns"

    async def go(provider: Provider) -> Result:
        async with provider.client() as client:
            agent = agentobs.Agent(
                client, options=options(budget=ASK_AT_TURNS), tools=[lookup], person=person
            )
            return await agent.run("Go")

    with Provider([LOOKS_UP] * 9) as provider:
        result = asyncio.run(go(provider))
        assert len(provider.requests) == 4
    assert asked == ["session_turns", "repeated_calls"]
    assert result.subtype == "error_max_turns"


def test_reached_limits_without_allowed_ones() -> None:
    """The narrowest limit that is reached and not allowed is returned, in the documented order."""
    limits = Budget(interaction_usd=Decimal(1), session_usd=Decimal(1), session_turns=2)
    spent = Spent(interaction_usd=Decimal(2), session_usd=Decimal(2), session_turns=2)
    found: list[Any] = []
    for _ in range(4):
        found.append(reached(limits, spent, frozenset(found)))
    assert found == ["interaction_usd", "session_usd", "session_turns", None]


@tool(name="lookup")
def other_lookup(name: str) -> str:
    """Look someone up elsewhere."""
    return name


HELPER = AgentDefinition("helper", "Helps.")
AT_LIMIT = Budget(interaction_usd=Decimal(1), at_limit="ask")
ASK_AT_TURNS = Budget(session_turns=2, repeated_turns=4, at_limit="ask")


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: Budget(at_limit="Stop"), "^Budget.at_limit: unknown value 'Stop'"),  # type: ignore[arg-type]
        (lambda: Budget(session_turns=-1), "^Budget.session_turns: -1 is not a valid number"),
        (lambda: Budget(session_turns="4"), "^Budget.session_turns: '4' is not a valid"),  # type: ignore[arg-type]
        (lambda: Budget(runaway="yes"), "^Budget.runaway: got a value of type str"),  # type: ignore[arg-type]
        (lambda: Hook("stop", refuse, once="no"), "^hook stop: once is 'no'"),  # type: ignore[arg-type]
        (lambda: Context(kept_results="5"), "^Context.kept_results: got a value of type str"),  # type: ignore[arg-type]
        (lambda: Context(window_tokens="9"), "^Context.window_tokens: got a value of type str"),  # type: ignore[arg-type]
        (lambda: Context(is_automatic=0), "^Context.is_automatic: got a value of type int"),  # type: ignore[arg-type]
        (lambda: Context(instructions=["x"]), "^Context.instructions: got a value of type list"),  # type: ignore[arg-type]
    ],
)
def test_bad_limits(make: Callable[[], Any], expected: str) -> None:
    """A budget and a context with values of the wrong kind are refused when they are created."""
    with pytest.raises(UsageError, match=expected):
        make()


@pytest.mark.parametrize("prompt", [None, 5, "", " ", [], ["x"], {"role": "user"}])
def test_a_prompt_of_the_wrong_kind(prompt: Any) -> None:
    """A prompt that cannot be sent is refused before anything is sent, and the agent can continue."""
    with Provider([DONE]) as provider:

        async def ask() -> str:
            async with provider.client() as client:
                agent = agentobs.Agent(client, options=options())
                with pytest.raises(UsageError, match=r"^prompt: "):
                    await agent.run(prompt)
                return (await agent.run("Hello")).text

        assert asyncio.run(ask()) == "Done."
        assert len(provider.requests) == 1


@pytest.mark.parametrize("message", [None, 5, b"x", ["x"]])
def test_a_message_of_the_wrong_kind(message: Any) -> None:
    """A message to the agent that is not a text is refused."""
    agent = agentobs.Agent(anthropic.AsyncAnthropic(api_key="made-up"), options=options())
    for send in (agent.steer, agent.follow_up):
        with pytest.raises(UsageError, match=r"^text: got "):
            send(message)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"tools": [lookup, lookup]}, "'lookup' is already the name"),
        ({"tools": [lookup, other_lookup]}, "'lookup' is already the name"),
        (
            {"tools": [refuse]},
            "^tools: the list contains the function refuse. Pass a list of tools, each",
        ),
        ({"tools": pay}, "^tools: expected a list, got the Tool pay. Pass a list of tools, each"),
        ({"tools": "x"}, "^tools: expected a list, got a value of type str"),
        ({"tools": None}, "^tools: expected a list, got None"),
        ({"tools": (each for each in [pay])}, "^tools: expected a list, got .* generator"),
        ({"hooks": [VETO, VETO]}, "the same hook is given twice: pre_tool_use"),
        (
            {"hooks": [refuse]},
            "^hooks: the list contains the function refuse. Pass a list of agentobs.agent.Hook",
        ),
        ({"hooks": VETO}, "^hooks: expected a list, got a value of type Hook. Pass a list of"),
        ({"hooks": None}, "^hooks: expected a list, got None"),
        ({"hooks": [VETO], "options": options(hooks=(VETO,))}, "hooks were given twice"),
        ({"sub_agents": [HELPER, HELPER]}, "two agents are named helper"),
        (
            {"sub_agents": ["helper"]},
            "^sub_agents: the list contains a value of type str. Pass a list of",
        ),
        ({"sub_agents": HELPER}, "^sub_agents: expected a list, got the AgentDefinition helper"),
        (
            {"sub_agents": {"helper": HELPER}},
            "^sub_agents: expected a list, got a value of type dict",
        ),
        (
            {"roots": "path"},
            "^roots: expected a list, got a value of type str. Pass a list of folders",
        ),
        ({"roots": Path("path")}, "^roots: expected a list, got the PosixPath path"),
        ({"roots": [1]}, "^roots: the list contains a value of type int"),
        ({"person": "Ann"}, "^person: got a value of type str. Pass a function, or None"),
        ({"person": Reply(True)}, "^person: got a value of type Reply. Pass a function, or None"),
        ({"memory": "text"}, "^memory: got a value of type str. Pass a function, or None"),
        ({"refresh": True}, "^refresh: got a value of type bool. Pass a function, or None"),
        (
            {"classifier": MODEL},
            "^classifier: got a value of type str. Pass an agentobs.agent.Classifier",
        ),
        ({"hook_model": 5}, "^hook_model: got a value of type int. Pass the name of a model"),
        ({"hook_model": ""}, "^hook_model: got a value of type str. Pass the name of a model"),
        (
            {"options": None},
            "^options: the options have the type NoneType. Pass agentobs.agent.AgentOptions",
        ),
        (
            {"options": options(budget=None)},
            "^AgentOptions.budget: got None. Pass an agentobs.agent.Budget",
        ),
        ({"options": options(budget=1)}, "^AgentOptions.budget: got a value of type int"),
        (
            {"options": options(permissions="all")},
            "^AgentOptions.permissions: got a value of type str",
        ),
        ({"options": options(context=None)}, "^AgentOptions.context: got None"),
        ({"options": options(thinking=True)}, "^AgentOptions.thinking: got a value of type bool"),
        (
            {"options": options(system=5)},
            "^AgentOptions.system: got a value of type int. Pass a text",
        ),
        (
            {"options": options(output=dict)},
            "^AgentOptions.output: got the class dict. Pass a subclass of",
        ),
        (
            {"options": options(cache="1d")},
            '^AgentOptions.cache: got a value of type str. Pass "5m", "1h"',
        ),
        (
            {"options": options(token_budget="9")},
            "^AgentOptions.token_budget: got a value of type str",
        ),
        (
            {"options": options(answer_seconds=0)},
            "^AgentOptions.answer_seconds: got a value of type int",
        ),
        (
            {"options": options(betas="x")},
            "^AgentOptions.betas: got a value of type str. Pass a tuple",
        ),
        (
            {"options": options(extra=["x"])},
            "^AgentOptions.extra: got a value of type list. Pass a mapping",
        ),
        (
            {"options": options(fallback_model=1)},
            "^AgentOptions.fallback_model: got a value of type int",
        ),
        ({"sub_agents": [AgentDefinition("a", "b", tools=("x",))]}, "unknown tools: x"),
        ({"options": MODEL}, "the options have the type str"),
        ({"options": options(max_turns=0)}, "0 is not a number of turns"),
        ({"options": options(stream="no")}, "^AgentOptions.stream: got a value of type str"),
        ({"options": options(unattended=1)}, "^AgentOptions.unattended: got a value of type int"),
        ({"options": preset(model=MODEL)}, "the type Preset. Pass .*, or preset.options()"),
        ({"options": options(fallback_model=MODEL)}, "is its own fallback"),
        ({"options": options(stream=False, max_tokens=64_000)}, "too many without streaming"),
        ({"options": options(model=" ")}, "there is no model"),
        ({"options": options(budget=AT_LIMIT)}, "no person can be asked at a limit"),
    ],
)
def test_bad_input(arguments: dict[str, Any], expected: str) -> None:
    """Whatever cannot be used together is refused with one error when the agent is created."""
    with pytest.raises(UsageError, match=expected):
        agentobs.Agent(
            anthropic.AsyncAnthropic(api_key="made-up"), **{"options": options(), **arguments}
        )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"tools": pay}, "^tools: expected a list, got the Tool pay"),
        ({"hooks": VETO}, "^hooks: expected a list, got a value of type Hook"),
        ({"roots": "path"}, "^roots: expected a list, got a value of type str"),
        ({"person": "Ann"}, "^person: got a value of type str"),
        ({"memory": "text"}, "^memory: got a value of type str"),
        ({"spent_today": Decimal(1)}, "^spent_today: got a value of type Decimal"),
        ({"load": {}}, "^load: got a value of type dict"),
        ({"keep": "x"}, "^keep: got a value of type str"),
        ({"inbox": []}, "^inbox: got a value of type list. Pass an agentobs.agent.Inbox"),
        ({"abort": True}, "^abort: got a value of type bool. Pass an agentobs.world.Abort"),
        ({"sections": {"news": "text"}}, "^sections: got a value of type dict. Pass prompt"),
        ({"classifier": MODEL}, "^classifier: got a value of type str"),
    ],
)
def test_bad_input_of_a_world(arguments: dict[str, Any], expected: str) -> None:
    """`live_world` refuses arguments of the wrong kind with the same errors."""
    with pytest.raises(UsageError, match=expected):
        live_world(anthropic.AsyncAnthropic(api_key="made-up"), **arguments)


def test_bad_input_of_a_run() -> None:
    """`run` refuses arguments of the wrong kind before a request is sent; `AgentOptions` already refuses hooks."""
    refused_run("^tools: expected a list, got the Tool pay", tools=pay)
    refused_run("^tools: the list contains the function refuse", tools=[refuse])
    refused_run("^options: the options have the type NoneType", options=None)
    refused_run("^AgentOptions.budget: got None", options=options(budget=None))
    with pytest.raises(UsageError, match=r"^hooks: expected a list, got a value of type Hook"):
        options(hooks=VETO)


@pytest.mark.parametrize("relation", ["resume", "fork"])
def test_a_session_that_cannot_be_named(relation: str) -> None:
    """A session ID or a turn that cannot exist is refused by `resume` and `fork` themselves."""
    agent = agentobs.Agent(anthropic.AsyncAnthropic(api_key="made-up"), options=options())
    continue_from = getattr(agent, relation)
    for session_id in ("", " ", None, 5, b"abc"):
        with pytest.raises(UsageError, match=rf"^Agent.{relation}, session_id: .* is not the ID"):
            continue_from(session_id)
    for turn in (0, -1, "x", True, 1.5):
        with pytest.raises(UsageError, match=r"^Agent.fork, turn: .* is not a turn number"):
            agent.fork("abc", turn=turn)  # type: ignore[arg-type]  # invalid turns


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
                options=AgentOptions(MODEL, cache=None),
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


@pytest.mark.slow
def test_sessions_are_resumed_forked_and_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent continues a recorded session by its ID; a fork leaves out later turns; its recording replays.

    An agent that already has a conversation cannot resume another one. A wrong ID can be corrected.
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

    async def correct(provider: Provider) -> None:
        async with provider.client() as client:
            agent = agentobs.Agent(agentobs.record(client), options=options(), tools=[lookup])
            agent.resume("typo")
            with agentobs.session("people"):
                for _ in range(2):  # it never starts without the earlier conversation
                    with pytest.raises(UsageError, match="typo"):
                        await agent.run("Three")
                assert (await agent.resume(first).run("Three")).text == "Done."

    with Provider([LOOKS_UP, DONE, DONE, DONE, DONE]) as provider:
        first = asyncio.run(ask(provider, ["One", "Two"], lambda agent: agent))
        assert agentobs.stop_recorder()
        asyncio.run(correct(provider))
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
