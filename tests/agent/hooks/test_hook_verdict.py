"""Answers of hooks are parsed, and the answers of several hooks are combined into one verdict."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentobs.agent.execution.hook_output import (
    ANSWER_BYTES_MAX,
    answer_from_bytes,
    answer_from_value,
)
from agentobs.agent.hooks import (
    ALLOWED_EFFECTS,
    EVENTS,
    HookAnswer,
    HookEvent,
    parse,
    usage_in,
    verdict,
)
from agentobs.agent.hooks.hook_verdict import OUTCOMES

USAGE = {"model": "m", "usage": {"output_tokens": 1}}

ANY_VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=10,
)
NAMES = ("outcome", "reason", "decision", "input", "output", "context", "stop", "usage")
WORDS = st.sampled_from([*OUTCOMES, "allow", "deny", "ask", "Allow", "", True, None])
ANSWER_LIKE = st.dictionaries(st.sampled_from([*NAMES, "desicion"]), ANY_VALUE | WORDS)
"""Objects with the field names of answers."""


def test_the_fields_of_an_answer() -> None:
    """Each field of an answer has one effect; a missing or null field has none."""
    written = {
        "reason": "It is better so.",
        "decision": "allow",
        "input": {"where": "there"},
        "context": "Mind the step.",
        "stop": True,
        "usage": [USAGE],
        "output": None,
    }
    assert parse(written, "pre_tool_use") == HookAnswer(
        reason="It is better so.",
        decision="allow",
        input={"where": "there"},
        context="Mind the step.",
        stop=True,
        usage=(USAGE,),
    )
    assert parse({}, "stop") == parse({"outcome": "success", "reason": None}) == HookAnswer()


def test_a_hook_answer_round_trips() -> None:
    """A `HookAnswer` that is converted to JSON and parsed is unchanged."""
    answer = HookAnswer(reason="r", decision="ask", input={"a": 1}, context="c", usage=(USAGE,))
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
    ("replace messages", {"messages": []}, "pre_tool_use"),
    ("not a list of messages", {"messages": []}, "pre_request"),
    ("not a list of messages", {"messages": [{"role": "system", "content": "x"}]}, "pre_request"),
    ("field usage", {"usage": [{"model": 1}]}, "stop"),
    ("decide on a call", {"decision": "allow"}, "stop"),
    ("change an input", {"input": {}}, "permission_request"),
    ("change an output", {"output": ""}, "permission_request"),
    ("is_error is only valid", {"output": "", "is_error": True}, "post_tool_use"),
    ("block anything", {"outcome": "blocking"}, "session_end"),
    ("add context for the model", {"context": "x"}, "notification"),
    ("end the run", {"stop": True}, "post_compact"),
]


@pytest.mark.parametrize(("found", "answer", "event"), WRONG)
def test_an_invalid_answer_is_an_error(found: str, answer: Any, event: HookEvent) -> None:
    """An invalid answer is an error that describes the fault, and the answer has no effect."""
    read = parse(answer, event)
    assert read == HookAnswer("non_blocking_error", read.reason)
    assert found in read.reason


def test_a_veto_in_an_invalid_answer_counts() -> None:
    """If a hook denies a call, a mistake in another field of its answer does not let the call run."""
    for denial in ({"outcome": "blocking"}, {"decision": "deny"}):
        read = parse({**denial, "reason": "No.", "input": 3, "color": "red"}, "pre_tool_use")
        assert (read.outcome, read.reason) == ("blocking", "No.")
        assert verdict([read]).blocked


def test_deny_is_a_veto() -> None:
    """A `deny` decision blocks the call and has no other effect."""
    read = parse({"decision": "deny", "reason": "No.", "input": {"a": 1}}, "pre_tool_use")
    assert read == HookAnswer("blocking", "No.", "deny")


@pytest.mark.parametrize("outcome", ["non_blocking_error", "cancelled"])
def test_a_failed_hook_changes_nothing(outcome: Any) -> None:
    """If a hook failed, the other fields of its answer are ignored."""
    read = parse({"outcome": outcome, "decision": "allow", "input": {}}, "pre_tool_use")
    assert read == HookAnswer(outcome)


def test_one_veto_blocks() -> None:
    """One veto blocks the call, however many hooks allow it; all changes are discarded, and the reasons are
    reported.
    """
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
    ("decisions", "strictest"),
    [
        (["allow", "ask"], "ask"),
        (["ask", "allow", None], "ask"),
        ([None, "allow"], "allow"),
        ([None, None], None),
    ],
)
def test_the_strictest_decision_is_used(decisions: list[Any], strictest: Any) -> None:
    """Of several decisions the strictest is used, whatever the order of the hooks: deny, then ask, then allow."""
    assert verdict([HookAnswer(decision=each) for each in decisions]).decision == strictest


def test_the_last_change_in_the_table_is_used() -> None:
    """If several hooks change the same input, the change of the last hook in the table is used, and the others are
    marked as overridden.
    """
    found = verdict([HookAnswer(input={"a": 1}), HookAnswer(), HookAnswer(input={"a": 2})])
    assert (found.input, found.overridden) == ({"a": 2}, (0,))


def test_effects_of_several_hooks_are_combined() -> None:
    """The verdict combines the contexts of all hooks, a request to end the run, and the usage of all hooks."""
    found = verdict(
        [HookAnswer(context="One."), HookAnswer(stop=True, reason="Enough.", usage=(USAGE,))]
    )
    assert (found.context, found.stop, found.reason, found.usage) == (
        ("One.",),
        True,
        "Enough.",
        (USAGE,),
    )


def test_usage_in_an_answer() -> None:
    """Answers of hooks and approvals may contain usage; invalid usage is ignored."""
    assert usage_in({"resolver": "classifier", "usage": [USAGE, 3]}) == [USAGE]
    assert usage_in(None) == usage_in({"usage": 3}) == []


@pytest.mark.slow
@given(ANY_VALUE | ANSWER_LIKE, st.sampled_from(EVENTS))
def test_any_answer_is_parsed(answer: Any, event: HookEvent) -> None:
    """Any value can be parsed as an answer, and it has only effects that its event allows."""
    read = parse(answer, event)
    assert read.outcome in OUTCOMES
    does = {
        "block": read.outcome == "blocking",
        "decision": read.decision in ("allow", "ask"),
        "input": read.input is not None,
        "output": read.output is not None or read.is_error,
        "messages": read.messages is not None,
        "context": bool(read.context),
        "stop": read.stop,
    }
    assert {name for name, done in does.items() if done} <= ALLOWED_EFFECTS[event]


@pytest.mark.slow
@given(
    st.binary()
    | ANY_VALUE.map(lambda value: json.dumps(value).encode())
    | ANSWER_LIKE.map(lambda value: json.dumps(value).encode())
)
def test_only_an_explicit_allow_allows_a_call(printed: bytes) -> None:
    """Of all possible outputs of a hook, only an object with the decision `allow` allows a call."""
    answer = answer_from_bytes(printed)
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
        (b"[1]", "expected an object"),
        (b"[" * 100_000, "too deep"),
        (b'{"a":' * 200 + b"1" + b"}" * 200, "too deep"),
        (b'{"a": "' + b"x" * ANSWER_BYTES_MAX + b'"}', "longer than"),
    ],
)
def test_invalid_json_is_an_error(printed: bytes, found: str) -> None:
    """Output that is not valid JSON is an error with a description."""
    answer = answer_from_bytes(printed)
    assert answer["outcome"] == "non_blocking_error"
    assert found in answer["reason"]
    assert len(answer["reason"]) < 2_000


def test_a_value_that_contains_itself_is_too_deep() -> None:
    """A returned value that contains itself is an error, because it is nested too deeply."""
    value: dict[str, Any] = {}
    value["a"] = [value, value]
    assert "too deep" in answer_from_value(value)["reason"]


def test_lone_surrogates_can_be_recorded() -> None:
    """Lone surrogates in an answer are replaced, because recordings are encoded in UTF-8."""
    answer = answer_from_value({"reason": "\ud800"})
    assert (
        answer
        == answer_from_bytes(b'{"reason": "\\ud800"}')
        == {"outcome": "success", "reason": "?"}
    )


def test_only_function_hooks_report_usage() -> None:
    """Usage in the answer of a program is ignored, because the program did not call a model through our client."""
    printed = json.dumps({"reason": "r", "usage": [USAGE]}).encode()
    assert answer_from_bytes(printed) == {"outcome": "success", "reason": "r"}
