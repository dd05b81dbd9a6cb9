"""The provider's cache: placement of breakpoints, and settings that keep the prefix stable."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import agentobs
from agentobs.agent import (
    Adaptive,
    AgentOptions,
    Budgeted,
    Conversation,
    Section,
    SettingHeld,
    SystemPrompt,
    declared,
    live_world,
    run,
    tool,
)
from agentobs.agent.state import initial_state, request_arguments
from agentobs.provider.anthropic.messages import conversation_error
from agentobs.records.facts import Event

from .agent_runs import ALLOW_ALL, events_of, in_loop, of_kind, recorded, result_of
from .provider import MODEL, Provider, call, message, streamed, text

MARK = {"cache_control": {"type": "ephemeral"}}


@tool(read_only=True)
def look(where: str) -> str:
    """Look somewhere."""
    return f"nothing in {where}"


LOOK = {
    "name": "look",
    "description": "Look somewhere.",
    "input_schema": look.declaration["input_schema"],
}
DONE = streamed(message(text("Done.")))


def block(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


def result(tool_use_id: str, content: str, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": tool_use_id, "content": content, **more}


def test_three_breakpoints_the_last_of_which_moves() -> None:
    """The last tool, the last system block and the last message have breakpoints; the breakpoint of the last message
    moves in each request.
    """
    tool_call = call("a", "look", where="box")
    with Provider([streamed(message(tool_call)), DONE]) as provider:
        result_of(events_of(provider, tools=[look], system="Be kind.", cache="5m"))
    same = {
        "model": MODEL,
        "max_tokens": 100,
        "system": [block("Be kind.", **MARK)],
        "tools": [{**LOOK, **MARK}],
        "stream": True,
    }
    first, second = provider.requests
    assert first == {**same, "messages": [{"role": "user", "content": [block("Hello", **MARK)]}]}
    assert second == {
        **same,
        "messages": [
            {"role": "user", "content": [block("Hello")]},
            {"role": "assistant", "content": [tool_call]},
            {"role": "user", "content": [result("a", "nothing in box", **MARK)]},
        ],
    }


def test_default_and_one_hour_breakpoints() -> None:
    """Breakpoints are set by default, and can be set for one hour; with `cache=None` there are none, and bodies are
    unchanged.
    """
    state = initial_state(Conversation(), "Hello")
    hour = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    for options, mark in [(AgentOptions("m"), MARK), (AgentOptions("m", cache="1h"), hour)]:
        request_messages = request_arguments(state, options, [])["messages"]
        assert request_messages == [{"role": "user", "content": [block("Hello", **mark)]}]
    bare = request_arguments(state, AgentOptions("m", system="S", cache=None), [])
    assert (bare["messages"], bare["system"]) == (list(state.messages), "S")


def test_the_static_part_has_its_own_breakpoint() -> None:
    """If there are volatile sections, the static part of the system prompt has its own breakpoint, in addition to the
    breakpoint at the end.
    """
    prompt = SystemPrompt(
        default=(Section("a", "Stay."), Section("b", "Go.", volatile=True, reason="it goes"))
    )
    request = request_arguments(
        initial_state(Conversation(), "Hello"), AgentOptions("m", system=prompt), [look]
    )
    assert request["system"] == [block("Stay.", **MARK), block("Go.", **MARK)]
    assert json.dumps(request).count("cache_control") == 4


@pytest.mark.parametrize(
    ("messages", "place"),
    [
        ([("user", [block("a"), block(" ")])], (0, 0)),
        ([("user", "a"), ("assistant", [block("b")]), ("user", [block("")])], (1, 0)),
        (
            [
                ("user", "a"),
                ("assistant", [block("b"), {"type": "thinking", "thinking": "t", "signature": "s"}]),
            ],
            (1, 0),
        ),
        ([("user", [{"type": "image", "source": {}}])], (0, 0)),
        ([("user", "")], None),
    ],
)  # fmt: skip
def test_only_cacheable_blocks_have_breakpoints(
    messages: list[Any], place: tuple[int, int] | None
) -> None:
    """If the last block is thinking or empty text, the breakpoint is set on the block before it."""
    history = tuple({"role": role, "content": content} for role, content in messages)
    request = request_arguments(_state(history), AgentOptions("m"), [])["messages"]
    marked = [
        (at, number)
        for at, each in enumerate(request)
        for number, inner in enumerate(each["content"])
        if isinstance(inner, dict) and "cache_control" in inner
    ]
    assert marked == ([place] if place else [])


def test_many_results_do_not_cause_a_cache_miss() -> None:
    """If a request has more than 20 new blocks, the end of the previous request also has a breakpoint, because the
    provider looks back only 20 blocks.
    """
    ids = [f"t{n}" for n in range(15)]
    history = (
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": [call(each, "look", where="x") for each in ids]},
        {"role": "user", "content": [result(each, "y") for each in ids]},
    )
    request = request_arguments(_state(history), AgentOptions("m", system="S"), [look])
    assert request["messages"][0]["content"] == [block("Hello", **MARK)]
    assert request["messages"][2]["content"][-1] == result("t14", "y", **MARK)
    assert json.dumps(request).count("cache_control") == 4
    few = (history[0], *({**each, "content": each["content"][:5]} for each in history[1:]))
    assert (
        json.dumps(request_arguments(_state(few), AgentOptions("m"), [])).count("cache_control")
        == 1
    )


def test_breakpoints_of_the_caller_count() -> None:
    """No breakpoint is added to a part in which the caller has set one, and there are at most four, including automatic
    caching.
    """
    own = [block(str(n), **MARK) for n in range(3)]
    request = request_arguments(
        initial_state(Conversation(), "Hello"), AgentOptions("m", system=own), [look]
    )
    assert request["system"] == own
    assert request["messages"][0]["content"] == [block("Hello", **MARK)]
    assert "cache_control" not in request["tools"][0]
    zone_options = AgentOptions("m", system=own, extra={"cache_control": MARK["cache_control"]})
    request = request_arguments(initial_state(Conversation(), "Hello"), zone_options, [look])
    assert request["messages"] == [{"role": "user", "content": [block("Hello")]}]
    assert json.dumps(request).count("cache_control") == 4
    marked = declared({"name": "a", "input_schema": {"type": "object"}, **MARK}, print)
    request = request_arguments(
        initial_state(Conversation(), "Hello"), AgentOptions("m"), [marked, look]
    )
    assert [("cache_control" in each) for each in request["tools"]] == [True, False]


def test_zones_in_extra_fields_are_unchanged() -> None:
    """Fields in `extra` are sent unchanged: their breakpoints count toward the four, and ours are set only in other
    parts.
    """
    own = [block(str(n), **MARK) for n in range(4)]
    cached_options = AgentOptions("m", system="S", extra={"system": own})
    request = request_arguments(initial_state(Conversation(), "Hello"), cached_options, [look])
    sent = {**request, **request["extra_body"]}
    assert sent["system"] == own
    assert (
        json.dumps([sent[zone] for zone in ("system", "tools", "messages")]).count("cache_control")
        == 4
    )
    bare = AgentOptions("m", system="S", extra={"tools": [LOOK]})
    request = request_arguments(initial_state(Conversation(), "Hello"), bare, [look])
    assert request["extra_body"]["tools"] == [LOOK]
    assert (request["system"], request["messages"][0]["content"]) == (
        [block("S", **MARK)],
        [block("Hello", **MARK)],
    )


@pytest.mark.parametrize(
    ("first", "second", "setting"),
    [
        ({"betas": ("a-1",)}, {"betas": ("a-1", "b-2")}, "betas"),
        ({"cache": "1h"}, {"cache": "5m"}, "cache"),
        ({"cache": "5m"}, {"cache": None}, "cache"),
        ({"thinking": Adaptive()}, {"thinking": None}, "thinking"),
        (
            {"thinking": Budgeted(1024), "max_tokens": 4000},
            {"thinking": Budgeted(2048), "max_tokens": 4000},
            "thinking",
        ),
        ({}, {"thinking": Adaptive("low")}, "thinking"),
        ({}, {"extra": {"speed": "fast", "temperature": 1}}, "extra.speed"),
        ({"extra": {"speed": "fast"}}, {}, "extra.speed"),
    ],
)  # fmt: skip
def test_settings_that_change_the_prefix_are_latched(
    first: dict[str, Any], second: dict[str, Any], setting: str
) -> None:
    """If a setting of the cached prefix changes during a conversation, this is reported once, and not used until
    `unlatch` is called.
    """
    conversation, held_settings = Conversation(), []
    steps = [first, second, second]
    with Provider([DONE] * 3) as provider, recorded() as records:
        for step in steps:
            events = events_of(provider, conversation=conversation, **step)
            held_settings.append([(e.turn, e.setting) for e in of_kind(events, SettingHeld)])
            if held_settings[-1]:
                conversation.unlatch()
    assert held_settings == [[], [(2, setting)], []]
    held_facts = [r for r in records if isinstance(r, Event) and r.kind == "setting_held"]
    assert [r.label for r in held_facts] == [setting]
    first_key, second_key, third_key = (
        prefix(r, h) for r, h in zip(provider.requests, provider.headers, strict=True)
    )
    assert first_key == second_key
    assert third_key != first_key


def prefix(request: dict[str, Any], headers: dict[str, str]) -> list[Any]:
    """Return the parts of a request that are in the provider's cache key, except the text."""
    names = ("model", "system", "tools", "thinking", "speed")
    mark = [
        m["content"][0].get("cache_control")
        for m in request["messages"][-1:]
        if isinstance(m["content"], list)
    ]
    return [headers.get("anthropic-beta"), mark, *(request.get(name) for name in names)]  # fmt: skip


def test_settings_outside_the_prefix_may_change() -> None:
    """Effort, response limit and other settings outside of the cached prefix may change, even while another setting is
    latched.
    """
    conversation = Conversation()
    steps: list[dict[str, Any]] = [
        {"thinking": Adaptive("low")},
        {"thinking": Adaptive("max", display="omitted"), "max_tokens": 50, "extra": {"top_p": 1}},
    ]
    with Provider([DONE] * 2) as provider:
        for step in steps:
            events_of(provider, conversation=conversation, **step)
    first, second = provider.requests
    assert (first["thinking"], first["output_config"]) == ({"type": "adaptive"}, {"effort": "low"})
    assert (second["thinking"], second["output_config"]) == (
        {"type": "adaptive"},
        {"effort": "max"},
    )
    assert (second["max_tokens"], second["top_p"]) == (50, 1)


def test_tools_keep_their_order() -> None:
    """Known tools keep their position, new tools follow them, and a new optional tool is last."""
    is_there = [True]
    maybe = tool(available=lambda: is_there[0], optional=True, name="maybe")(lambda: "x")
    other = tool(name="other")(lambda: "x")
    new = tool(name="new")(lambda: "x")
    listed = iter(
        [[maybe, look], [other, look, maybe], [other, look, maybe], [maybe, new, other, look]]
    )
    conversation = Conversation()
    with Provider([DONE] * 4) as provider:
        for is_offered in (True, False, True, True):
            is_there[0] = is_offered
            tools = next(listed)
            events_of(provider, tools=tools, conversation=conversation, cache="5m")
    assert [[each["name"] for each in r["tools"]] for r in provider.requests] == [
        ["look", "maybe"],
        ["look", "other"],
        ["look", "maybe", "other"],
        ["look", "maybe", "other", "new"],
    ]


@pytest.mark.slow
def test_a_recording_with_breakpoints_stays_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although the breakpoint moves with each request, a fixture contains the history only once, and it replays."""
    from agentobs.recording.journal.home import open_home
    from agentobs.recording.journal.segments import segment_ids
    from agentobs.recording.vault.vault import read_session
    from replay import Replayer, load
    from replay.fixture.writer import write

    sizes = {}
    monkeypatch.setenv("AGENTOBS_HOME", str(tmp_path / "home"))
    for count in (10, 20, 40):
        turns = [streamed(message(call(f"t{n}", "look", where=f"{n:0400}"))) for n in range(count)]

        async def run_agent(provider: Provider) -> str:
            async with provider.client() as client:
                agentobs.record(client)
                world = live_world(client, [look])
                with agentobs.session("long") as session:
                    options = AgentOptions(MODEL, permissions=ALLOW_ALL, system="S")
                    async for _ in run("Hello", world=world, options=options, tools=[look]):
                        pass
                return session.session_id

        with Provider([*turns, DONE]) as provider:
            session_id = in_loop(run_agent(provider))
        agentobs.stop_recorder()
        home = open_home(str(tmp_path / "home"))
        written = write(read_session(home, session_id, segment_ids(home)), {})
        sizes[count] = len(written)
        folder = tmp_path / str(count)
        folder.mkdir()
        (folder / "recording.jsonl").write_bytes(written)
        with Replayer(load(folder)) as replayed:
            replayed.run(run_agent, provider)
        assert len(provider.requests) == count + 1
        assert all(conversation_error(r["messages"]) is None for r in provider.requests)
    assert sizes[40] - sizes[20] < 2.2 * (sizes[20] - sizes[10])


def _state(messages: tuple[Any, ...]) -> Any:
    from agentobs.agent.state import State

    return State("awaiting_model", messages, 1, 0, 0, "start")
