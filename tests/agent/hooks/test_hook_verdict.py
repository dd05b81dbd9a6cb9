"""Parsing answers, and combining them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentobs.agent.execution.hook_output import ANSWER_BYTES_MAX, of_bytes, of_value
from agentobs.agent.hooks import EVENTS, MAY, HookAnswer, HookEvent, parse, usage_in, verdict
from agentobs.agent.hooks.hook_verdict import OUTCOMES

USED = {"model": "m", "usage": {"output_tokens": 1}}

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=10,
)
NAMES = ("outcome", "reason", "decision", "input", "output", "context", "stop", "usage")
WORDS = st.sampled_from([*OUTCOMES, "allow", "deny", "ask", "Allow", "", True, None])
NEARLY = st.dictionaries(st.sampled_from([*NAMES, "desicion"]), ANYTHING | WORDS)
"""Objects that look like answers."""


def test_an_answer_says_what_it_may() -> None:
    """Each field has one meaning; a missing or null field changes nothing."""
    said = {
        "reason": "It is better so.",
        "decision": "allow",
        "input": {"where": "there"},
        "context": "Mind the step.",
        "stop": True,
        "usage": [USED],
        "output": None,
    }
    assert parse(said, "pre_tool_use") == HookAnswer(
        reason="It is better so.",
        decision="allow",
        input={"where": "there"},
        context="Mind the step.",
        stop=True,
        usage=(USED,),
    )
    assert parse({}, "stop") == parse({"outcome": "success", "reason": None}) == HookAnswer()


def test_what_is_written_is_read_back() -> None:
    """A function may return an answer of our type."""
    answer = HookAnswer(reason="r", decision="ask", input={"a": 1}, context="c", usage=(USED,))
    assert parse(answer.as_json(), "pre_tool_use") == answer


WRONG: list[tuple[str, Any, HookEvent]] = [
    ("the answer is null", None, "stop"),
    ("the answer is a list", [], "stop"),
    ("'desicion'", {"desicion": "deny"}, "pre_tool_use"),
    ("field outcome", {"outcome": "ok"}, "stop"),
    ("field reason", {"reason": 3}, "stop"),
    ("field decision", {"decision": "Allow"}, "pre_tool_use"),
    ("field decision", {"decision": True}, "pre_tool_use"),
    ("field input", {"input": "rm"}, "pre_tool_use"),
    ("field output", {"output": [1]}, "post_tool_use"),
    ("field context", {"context": ["a"]}, "stop"),
    ("field stop", {"stop": "yes"}, "stop"),
    ("field usage", {"usage": [{"model": 1}]}, "stop"),
    ("decide on a call", {"decision": "allow"}, "stop"),
    ("change an input", {"input": {}}, "permission_request"),
    ("change an output", {"output": ""}, "pre_tool_use"),
    ("block anything", {"outcome": "blocking"}, "session_end"),
    ("add context for the model", {"context": "x"}, "notification"),
    ("end the run", {"stop": True}, "post_compact"),
]


@pytest.mark.parametrize(("found", "answer", "event"), WRONG)
def test_what_does_not_fit_is_an_error_that_says_so(
    found: str, answer: Any, event: HookEvent
) -> None:
    """Nothing in such an answer has an effect."""
    read = parse(answer, event)
    assert read == HookAnswer("non_blocking_error", read.reason)
    assert found in read.reason


def test_a_plain_veto_counts_whatever_else_is_wrong() -> None:
    """Another mistake in an answer must not let a call run that the hook denies."""
    for said in ({"outcome": "blocking"}, {"decision": "deny"}):
        read = parse({**said, "reason": "No.", "input": 3, "color": "red"}, "pre_tool_use")
        assert (read.outcome, read.reason) == ("blocking", "No.")
        assert verdict([read]).blocked


def test_deny_is_a_veto() -> None:
    """A denial blocks the call, and changes nothing else."""
    read = parse({"decision": "deny", "reason": "No.", "input": {"a": 1}}, "pre_tool_use")
    assert read == HookAnswer("blocking", "No.", "deny")


@pytest.mark.parametrize("outcome", ["non_blocking_error", "cancelled"])
def test_a_hook_that_failed_changes_nothing(outcome: Any) -> None:
    """Other fields of a failed answer are ignored."""
    read = parse({"outcome": outcome, "decision": "allow", "input": {}}, "pre_tool_use")
    assert read == HookAnswer(outcome)


def test_one_veto_blocks() -> None:
    """However many hooks allow the call; nothing is changed then, and the reasons are reported."""
    answers = [
        HookAnswer(decision="allow", input={"a": 1}),
        HookAnswer("blocking", "Not on Fridays."),
        HookAnswer("non_blocking_error", "broken"),
        HookAnswer("blocking", "Never.", "deny"),
    ]
    found = verdict(answers)
    assert (found.blocked, found.decision, found.input) == (True, "deny", None)
    assert found.reason == "Not on Fridays.\nNever."


@pytest.mark.parametrize(
    ("said", "strictest"),
    [
        (["allow", "ask"], "ask"),
        (["ask", "allow", None], "ask"),
        ([None, "allow"], "allow"),
        ([None, None], None),
    ],
)
def test_the_strictest_decision_holds(said: list[Any], strictest: Any) -> None:
    """Deny before ask before allow, in any order."""
    assert verdict([HookAnswer(decision=each) for each in said]).decision == strictest


def test_the_last_change_in_the_table_is_used() -> None:
    """Hooks run in parallel on the same input; overridden changes are marked."""
    found = verdict([HookAnswer(input={"a": 1}), HookAnswer(), HookAnswer(input={"a": 2})])
    assert (found.input, found.overridden) == ({"a": 2}, (0,))


def test_what_the_model_is_told_is_added_up() -> None:
    """Context of all hooks, the end of the run, and the usage of their requests."""
    found = verdict(
        [HookAnswer(context="One."), HookAnswer(stop=True, reason="Enough.", usage=(USED,))]
    )
    assert (found.context, found.stop, found.reason, found.usage) == (
        ("One.",),
        True,
        "Enough.",
        (USED,),
    )


def test_usage_in_an_answer() -> None:
    """Answers of hooks and approvals carry usage; invalid usage is left out."""
    assert usage_in({"resolver": "classifier", "usage": [USED, 3]}) == [USED]
    assert usage_in(None) == usage_in({"usage": 3}) == []


@given(ANYTHING | NEARLY, st.sampled_from(EVENTS))
def test_no_answer_hurts(answer: Any, event: HookEvent) -> None:
    """Any value is parsed, and has no effect that its event does not allow."""
    read = parse(answer, event)
    assert read.outcome in OUTCOMES
    does = {
        "block": read.outcome == "blocking",
        "decision": read.decision in ("allow", "ask"),
        "input": read.input is not None,
        "output": read.output is not None,
        "context": bool(read.context),
        "stop": read.stop,
    }
    assert {name for name, done in does.items() if done} <= MAY[event]


@given(
    st.binary()
    | ANYTHING.map(lambda value: json.dumps(value).encode())
    | NEARLY.map(lambda value: json.dumps(value).encode())
)
def test_no_bytes_allow_a_call_but_a_plain_word(printed: bytes) -> None:
    """Any output of a hook is parsed, and a call is allowed only by an object that says so."""
    answer = of_bytes(printed)
    json.dumps(answer, allow_nan=False).encode("utf-8")
    found = verdict([parse(answer, "pre_tool_use")])
    if found.decision == "allow":
        assert json.loads(printed)["decision"] == "allow"
    try:
        veto = json.loads(printed)
    except ValueError:
        return
    if isinstance(veto, dict) and veto.get("decision") == "deny" and "NaN" not in str(veto):
        assert found.blocked or answer["outcome"] == "non_blocking_error"


@pytest.mark.parametrize(
    ("printed", "found"),
    [
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"yes", "not JSON"),
        (b'{"a": NaN}', "not JSON"),
        (b'{"a": 1e999}', "not JSON"),
        (b'{"decision": "deny", "decision": "allow"}', "a key twice"),
        (b"[1]", "not an object"),
        (b"[" * 100_000, "too deep"),
        (b'{"a":' * 200 + b"1" + b"}" * 200, "too deep"),
        (b'{"a": "' + b"x" * ANSWER_BYTES_MAX + b'"}', "longer than"),
    ],
)
def test_broken_json(printed: bytes, found: str) -> None:
    """It is an error with a description."""
    answer = of_bytes(printed)
    assert answer["outcome"] == "non_blocking_error"
    assert found in answer["reason"]
    assert len(answer["reason"]) < 2_000


def test_what_holds_itself_is_too_deep() -> None:
    """A function may return anything."""
    value: dict[str, Any] = {}
    value["a"] = [value, value]
    assert "too deep" in of_value(value)["reason"]


def test_half_a_surrogate_pair_can_be_written() -> None:
    """Recordings are UTF-8."""
    answer = of_value({"reason": "\ud800"})
    assert answer == of_bytes(b'{"reason": "\\ud800"}') == {"outcome": "success", "reason": "?"}


def test_only_functions_tell_what_was_used() -> None:
    """A program has not called a model for us, so its usage is ignored."""
    printed = json.dumps({"reason": "r", "usage": [USED]}).encode()
    assert of_bytes(printed) == {"outcome": "success", "reason": "r"}
