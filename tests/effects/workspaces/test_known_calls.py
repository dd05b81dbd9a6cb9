"""When a call may have changed files: commands in the background after their result."""

from __future__ import annotations

from typing import Any

import pytest

from agentobs.effects.workspaces.attribution import Call
from agentobs.effects.workspaces.known_calls import KnownCalls
from agentobs.records.backend import WrittenFact
from agentobs.records.effect_facts import Command, EffectLink
from agentobs.records.exchanges import ObservedEffect, ToolExchange
from agentobs.records.facts import ToolResult
from agentobs.records.labels import Label

BACKGROUND = {"command": "npm start", "run_in_background": True}
LEFT = {"command": "npm start &"}


def facts(*values: Any) -> list[WrittenFact]:
    return [WrittenFact(each, number) for number, each in enumerate(values, 1)]


def known(value: Any) -> tuple[KnownCalls, Call]:
    """Return the known calls with one that was opened at 10."""
    calls = KnownCalls()
    call = Call("s", "a1", 1, "t1", "Bash", value, "main", 1, None, 10)
    calls._calls["a1", 1] = call
    return calls, call


def finish(calls: KnownCalls, at_ns: int) -> None:
    """Record the result of the call."""
    result = ToolResult(
        "s", Label("t1"), None, None, at_ns, "wire", Label("executed"), False, 0, None, attempt_id="a1", ordinal=1
    )  # fmt: skip
    calls.record(object.__new__(ToolExchange), facts(result))


def end_command(calls: KnownCalls, ended_ns: int, rule: Any = "contained_command") -> None:
    """Record the end of the command, and its link."""
    fact = Command(
        "s", None, None, None, "c", None, None, Label("bash"), "shim", 11, ended_ns, 1, "exited", 0, None, 1, 0,
        "pipe", "pipe", "pipe", False, 0, 0,
    )  # fmt: skip
    link = EffectLink(
        "s", "c", "command", Label("t1"), "a1", 1, None, Label("main"), 1, "inferred", rule
    )
    calls.record(ObservedEffect(fact, content={"directory": "/src/docs"}), facts(fact, link))


@pytest.mark.parametrize(
    ("value", "closed_ns"), [({"command": "make"}, 20), (BACKGROUND, None), (LEFT, None)]
)
def test_a_result_closes_a_call_unless_its_command_continues(
    value: Any, closed_ns: int | None
) -> None:
    calls, call = known(value)
    finish(calls, 20)
    assert (call.returned_ns, call.closed_ns) == (20, closed_ns)
    calls.forget_before(1000)
    assert bool(calls.calls()) == (closed_ns is None)


def test_the_end_of_its_command_closes_a_call_in_the_background() -> None:
    """Whether the command ends after the result or before it. Its directory is known then."""
    calls, call = known(BACKGROUND)
    finish(calls, 20)
    end_command(calls, 90)
    assert (call.closed_ns, call.directory) == (90, "/src/docs")
    calls, call = known(BACKGROUND)
    end_command(calls, 15)
    assert call.closed_ns is None
    finish(calls, 20)
    assert call.closed_ns == 20


def test_other_commands_close_no_call() -> None:
    """The end of a shell is not the end of its job; and a rule other than equal texts may name another command."""
    for value, rule in ((LEFT, "contained_command"), (BACKGROUND, "parent_command")):
        calls, call = known(value)
        finish(calls, 20)
        end_command(calls, 90, rule)
        assert call.closed_ns is None
