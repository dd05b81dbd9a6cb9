"""Links of effects to tool calls: the rules, and when there must be no link."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from agentobs.recording.facts.effect_links import EffectLinks
from agentobs.records.effect_facts import Command, EffectLink, McpCall
from agentobs.records.exchanges import ObservedEffect
from agentobs.records.facts import ToolResult, ToolUse
from agentobs.records.labels import Label


def use(number: int, at_ns: int = 100, name: str = "Bash", lane: str = "main") -> ToolUse:
    return ToolUse(
        "s", "i", Label(lane), 1, f"a{number}", Label(f"t{number}"), Label(name), 1, at_ns, 0
    )


def result(number: int, at_ns: int, span_id: str | None = None) -> ToolResult:
    return ToolResult(
        "s", Label(f"t{number}"), None, None, at_ns, "wire", Label("executed"), False, 0, None,
        span_id=span_id, attempt_id=f"a{number}", ordinal=1,
    )  # fmt: skip


def command(
    started_ns: int,
    *arguments: str,
    command_id: str = "c",
    parent: str | None = None,
    lane: str | None = None,
    spans: tuple[str, ...] = (),
) -> ObservedEffect:
    fact = Command(
        "s", None, Label(lane) if lane else None, None, command_id, parent, None, Label("bash"), "shim", started_ns,
        started_ns + 1, 1, "exited", 0, None, len(arguments), 0, "pipe", "pipe", "pipe", False, 0, 0,
    )  # fmt: skip
    return ObservedEffect(fact, ("bash", *arguments), spans=spans)


def mcp_call(started_ns: int, arguments: object, *ids: str) -> ObservedEffect:
    fact = McpCall(
        "s", None, None, None, "m", None, Label("calc"), "stdio", "client", Label("tools/call"), Label("add"),
        started_ns, None, None, "ok", None, 0, None,
    )  # fmt: skip
    return ObservedEffect(fact, ids, arguments)


def reduced(found: Iterable[EffectLink]) -> list[tuple[str, str, str]]:
    return [(each.effect_id, str(each.tool_use_id), each.rule) for each in found]


def links(*calls: tuple[ToolUse, object]) -> EffectLinks:
    known = EffectLinks()
    for fact, tool_input in calls:
        known.note_call(fact, tool_input, fact.requested_ns - 50)
    return known


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        (("-c", "npm test"), "equal_command"),
        (("-c", "cd x && eval 'npm test' < /dev/null && pwd"), "contained_command"),
        (("-lc", "eval npm test \\< /dev/null"), "contained_command"),
        (("-c", "npm tests"), "only_open_call"),
        (("-c", "echo 'npm  test"), "only_open_call"),
    ],
)
def test_the_rule_of_a_command(arguments: tuple[str, ...], rule: str) -> None:
    known = links((use(1), {"command": "npm test", "timeout": 3}))
    assert reduced([*known.effect(command(150, *arguments)), *known.settle()]) == [
        ("c", "t1", rule)
    ]


def test_no_link_is_guessed_between_equal_calls() -> None:
    """Two open calls with the same input fit equally, and no rule may choose one."""
    known = links((use(1), {"command": "x"}), (use(2), {"command": "x"}))
    assert reduced([*known.effect(command(150, "-c", "x")), *known.settle()]) == []


def test_only_open_calls_are_considered() -> None:
    """A call is not open before its request or after its result; during its response, only its input can show that it
    is open.
    """
    known = links((use(1), {"command": "x"}))
    list(known.note_result(result(1, 200)))
    for at_ns, texts, expected in (
        (49, "x", []),
        (60, "x", ["equal_command"]),
        (60, "y", []),
        (150, "y", ["only_open_call"]),
        (201, "x", []),
    ):
        found = [*known.effect(command(at_ns, "-c", texts)), *known.settle()]
        assert [each.rule for each in found] == expected


def test_a_command_in_the_background_may_start_after_its_result() -> None:
    """Only its text can show this; a command with another text belongs to the call that is open then."""
    background = {"command": "npm start", "run_in_background": True}
    known = links((use(1), background), (use(2, 300), {"path": "a"}))
    list(known.note_result(result(1, 200)))
    assert reduced([*known.effect(command(310, "-c", "eval 'npm start'")), *known.settle()]) == [
        ("c", "t1", "contained_command")
    ]
    assert reduced([*known.effect(command(310, "-c", "other")), *known.settle()]) == [
        ("c", "t2", "only_open_call")
    ]
    assert reduced([*known.effect(command(40, "-c", "npm start")), *known.settle()]) == []
    # It has its command, so the same command later belongs to another call.
    known.note_call(use(3, 500), {"command": "npm start"}, 450)
    assert reduced([*known.effect(command(510, "-c", "npm start")), *known.settle()]) == [
        ("c", "t3", "equal_command")
    ]


def test_a_command_may_be_reported_before_its_call() -> None:
    """It waits for the response, and for its parent; the last word is the next request."""
    known = EffectLinks()
    child = command(160, "-c", "y", command_id="child", parent="parent")
    assert reduced(known.effect(child)) == []
    assert reduced(known.effect(command(150, "-c", "x", command_id="parent"))) == []
    known.note_call(use(1), {"command": "x"}, 50)
    assert reduced(known.settle(300)) == [
        ("parent", "t1", "equal_command"),
        ("child", "t1", "parent_command"),
    ]
    assert reduced(known.settle()) == []


def test_the_lane_of_a_command_is_respected() -> None:
    known = links((use(1, lane="main"), {}), (use(2, lane="main/t0"), {}))
    assert reduced([*known.effect(command(150, lane="main/t0")), *known.settle()]) == [
        ("c", "t2", "only_open_call")
    ]


def test_the_span_of_a_call_is_certain() -> None:
    """The result of a call names its span, which decides between equal commands."""
    known = links((use(1), {"command": "x"}), (use(2), {"command": "x"}))
    assert reduced(known.effect(command(150, "-c", "x", spans=("inner", "two")))) == []
    assert reduced(known.note_result(result(1, 200, "one"))) == []
    [link] = known.note_result(result(2, 200, "two"))
    assert (link.tool_use_id, link.certainty, link.rule) == ("t2", "observed", "same_span")


def test_the_rules_of_mcp_calls() -> None:
    """An ID in the metadata is certain; otherwise the name of the tool and its arguments decide."""
    calls = (
        (use(1, name="mcp__calc__add"), {"a": 1, "b": 2}),
        (use(2, name="other"), {"a": 1, "b": 2}),
    )
    known = links(*calls)
    assert reduced(known.effect(mcp_call(150, {"b": 2, "a": 1}))) == [("m", "t1", "equal_call")]
    [link] = links(*calls).effect(mcp_call(150, {}, "x", "t2"))
    assert (link.tool_use_id, link.certainty, link.rule) == ("t2", "observed", "named_call")
    known = links(*calls)
    assert reduced([*known.effect(mcp_call(150, {"a": 3})), *known.settle()]) == []
    listing = mcp_call(150, None)
    assert isinstance(listing.fact, McpCall)
    listing = replace(listing, fact=replace(listing.fact, method=Label("tools/list"), tool=None))
    known = links(calls[0])
    assert reduced([*known.effect(listing), *known.settle()]) == []
