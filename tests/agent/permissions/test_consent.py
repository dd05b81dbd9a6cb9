"""Approvals: what an answer means, and which later calls it allows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentobs.agent.permissions import Permissions, ResolvedPath, Rule, consented, decide

from .calls import edit_call, permissions_for, shell_call, write_call

YES = {"behavior": "allow", "resolver": "person"}
ALWAYS = {**YES, "scope": "session"}


def pending_decision(call: Any, permissions: Permissions | None = None) -> Any:
    decision = decide(call, permissions or Permissions())
    assert decision.behavior == "ask"
    return decision


def test_a_person_allows_once() -> None:
    """If a person answers `allow`, this call runs, and later calls need approval again."""
    decision, grant = consented(pending_decision(shell_call()), YES, shell_call())
    assert (decision.behavior, decision.reason_type, decision.resolver) == (
        "allow",
        "person",
        "person",
    )
    assert grant is None


def test_a_denial_by_a_person_has_a_reason() -> None:
    """If a person denies a call, the reason of the decision contains the person's text."""
    answer = {"behavior": "deny", "resolver": "person", "reason": "Use the tests first."}
    decision, grant = consented(pending_decision(shell_call()), answer, shell_call())
    assert (decision.behavior, decision.reason_type, decision.resolver) == (
        "deny",
        "person",
        "person",
    )
    assert "Use the tests first." in decision.reason
    assert grant is None


def test_a_classifier_allows_once_and_denies() -> None:
    """A decision by a classifier is attributed to the classifier and allows no later calls."""
    for behavior, words in (("allow", "allowed this call"), ("deny", "denied this call")):
        answer = {"behavior": behavior, "resolver": "classifier", "reason": "Seen.", "usage": []}
        decision, grant = consented(pending_decision(shell_call()), answer, shell_call())
        assert (decision.behavior, decision.reason_type, decision.resolver, grant) == (
            behavior,
            "classifier",
            "classifier",
            None,
        )
        assert f"The classifier {words}. Its reason: Seen." in decision.reason


def test_a_classifier_cannot_allow_a_call_that_requires_a_person() -> None:
    """If a rule requires a person, a classifier can deny but not allow; a classifier can never grant anything for a
    session.
    """
    ask = Permissions(rules=(Rule.parse("*", "ask", "user"),))
    approval = {"behavior": "allow", "resolver": "classifier"}
    decision, _ = consented(pending_decision(shell_call(), ask), approval, shell_call())
    assert (decision.behavior, decision.resolver) == ("deny", "unattended")
    decision, _ = consented(
        pending_decision(shell_call(), ask), {**approval, "behavior": "deny"}, shell_call()
    )
    assert (decision.behavior, decision.resolver) == ("deny", "classifier")
    decision, grant = consented(
        pending_decision(shell_call()), {**approval, "scope": "session"}, shell_call()
    )
    assert (decision.behavior, decision.resolver, grant) == ("deny", "unattended", None)


def test_without_a_person_the_call_is_denied() -> None:
    """Without a person, a call that needs approval is denied, with the reason why approval was needed."""
    question = pending_decision(shell_call())
    decision, grant = consented(
        question, {"behavior": "deny", "resolver": "unattended"}, shell_call()
    )
    assert (decision.behavior, decision.resolver, grant) == ("deny", "unattended", None)
    assert decision.reason_type == question.reason_type
    assert question.reason in decision.reason
    assert "Nobody is available" in decision.reason


@pytest.mark.parametrize(
    ("answer", "reason_part"),
    [
        (None, "not an object"),
        (True, "not an object"),
        ("allow", "not an object"),
        ([], "not an object"),
        ({}, "its behavior"),
        ({"behavior": "allow"}, "its resolver"),
        ({"behavior": "yes", "resolver": "person"}, "its behavior"),
        ({"behavior": True, "resolver": "person"}, "its behavior"),
        ({"behavior": ["allow"], "resolver": "person"}, "its behavior"),
        (
            {"behavior": "allow", "resolver": "unattended"},
            "an unattended answer cannot allow a call",
        ),
        ({"behavior": "allow", "resolver": "model"}, "its resolver"),
        ({**YES, "scope": "forever"}, "its scope"),
        ({**YES, "scope": None}, "its scope"),
        ({**YES, "reason": 1}, "its reason"),
        ({**YES, "input": {"command": "git status"}}, "use 'updated_input' to change the input"),
        ({**YES, "until": "tomorrow"}, "a field 'until'"),
        (dict[Any, Any]([(1, 2)]), "a field '1'"),
    ],
)
def test_a_malformed_answer_is_a_denial(answer: Any, reason_part: str) -> None:
    """A malformed answer denies the call with a reason that describes the fault, and grants nothing."""
    decision, grant = consented(pending_decision(shell_call()), answer, shell_call())
    assert (decision.behavior, decision.resolver, grant) == ("deny", "unattended", None)
    assert "is not valid: " in decision.reason
    assert reason_part in decision.reason


json_values: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["behavior", "resolver", "scope", "reason", "input"])
            | st.text(max_size=3),
            inner,
        )
    ),
    max_leaves=8,
)


@given(json_values)
def test_only_an_exact_allow_answer_allows(answer: Any) -> None:
    """Of all possible answers, only an `allow` answer of the exact form lets a call run."""
    decision, grant = consented(pending_decision(shell_call()), answer, shell_call())
    if decision.behavior == "allow":
        assert (answer["behavior"], answer["resolver"]) == ("allow", "person")
        assert set(answer) <= {"behavior", "resolver", "scope", "reason"}
    else:
        assert grant is None


def test_an_answer_does_not_change_a_denial() -> None:
    """If permissions deny a call, no answer can allow the call."""
    denied = decide(shell_call(), permissions_for(deny=("shell",)))
    assert consented(denied, ALWAYS, shell_call()) == (denied, None)


NO_GRANTS = [
    ("allow", None, "session"),
    ("allow", "git *", "session"),
    ("allow", "=git status", "session"),
    ("allow", '={"input":"b2:0"}', "user"),
    ("deny", '={"input":"b2:0"}', "session"),
]

NASTY = ["git status", "git log *", "=x", "echo $(date) > f", "a) b", "{}", "a\nb", " ", "é'\""]


@pytest.mark.parametrize("command", NASTY)
@pytest.mark.parametrize("mode", ["default", "acceptEdits"])
def test_a_grant_is_for_identical_calls(command: str, mode: Any) -> None:
    """An approval for the session allows identical calls, but not calls of another tool or with other input."""
    call, before = shell_call(command), permissions_for(mode)
    decision, grant = consented(pending_decision(call, before), ALWAYS, call)
    assert grant is not None
    assert (decision.rule, decision.source) == (grant, "session")
    assert Rule.parse(str(grant), "allow", "session") == grant
    grants = {grant}
    repeated = decide(shell_call(command), before, grants=grants)
    assert (repeated.behavior, repeated.rule, repeated.source) == ("allow", grant, "session")
    for other in (command + " ", command + " x", "git log x", command.replace("*", "-p")):
        if other != command:
            assert decide(shell_call(other), before, grants=grants).behavior == "ask"
    other_input = shell_call(command, input={"of": command, "as": "root"})
    assert decide(other_input, before, grants=grants).behavior == "ask"
    assert decide(write_call(command), before, grants=grants).behavior == "ask"


def test_a_grant_depends_on_the_complete_input() -> None:
    """A grant depends on the complete input, not only on the subject of the rule: another amount or content needs
    approval again.
    """
    pairs: list[tuple[Any, dict[str, Any], dict[str, Any]]] = [
        (write_call, {"to": "bob", "cents": 1}, {"to": "bob", "cents": 10**9}),
        (write_call, {"to": "bob", "cents": 1}, {"to": "bob", "cents": True}),
        (write_call, {"to": "bob", "cents": 1}, {"to": "bob", "cents": "1"}),
        (edit_call, {"file": "x", "content": "a"}, {"file": "x", "content": "b"}),
        (edit_call, {"file": "x", "content": "a"}, {"file": "x", "content": "a", "mode": None}),
    ]
    for make, seen, other in pairs:
        call = make("x", input=seen)
        _, grant = consented(pending_decision(call), ALWAYS, call)
        assert grant is not None
        assert decide(call, Permissions(), grants={grant}).behavior == "allow"
        turned = make("x", input=dict(reversed(seen.items())))
        assert decide(turned, Permissions(), grants={grant}).behavior == "allow"
        assert decide(make("x", input=other), Permissions(), grants={grant}).behavior == "ask"


def test_grants_are_looked_up_without_iteration() -> None:
    """A grant is found by a set lookup, without iterating over all grants."""
    calls = [write_call(str(number)) for number in range(1000)]
    grants = {consented(pending_decision(call), ALWAYS, call)[1] for call in calls}
    assert len(grants) == 1000

    class NotIterable(frozenset[Rule]):
        def __iter__(self) -> Iterator[Rule]:
            raise AssertionError("the grants were iterated over")

    granted = NotIterable(grant for grant in grants if grant)
    assert decide(write_call("none"), Permissions(), grants=granted).behavior == "ask"
    assert decide(write_call("999"), Permissions(), grants=granted).behavior == "allow"


def test_an_invalid_grant_has_no_effect() -> None:
    """A grant that covers more than one call, or is not from a person, has no effect."""
    call = shell_call("git status")
    for behavior, pattern, source in NO_GRANTS:
        rule = Rule(behavior, "shell", pattern, source)  # type: ignore[arg-type]
        assert decide(call, Permissions(), grants=(rule,)).behavior == "ask"


def test_an_approval_for_a_tool_name_that_no_rule_can_contain() -> None:
    """If a rule cannot contain the name of a tool, an approval for the session allows only this call, without
    an error.
    """
    call = replace(write_call("x"), tool="two words")
    decision, grant = consented(pending_decision(call), ALWAYS, call)
    assert (decision.behavior, grant) == ("allow", None)
    assert "once" in decision.reason
    _, other = consented(pending_decision(write_call("x")), ALWAYS, write_call("x"))
    assert other is not None
    assert decide(call, Permissions(), grants={other}).behavior == "ask"


def test_an_exact_rule_matches_the_subject() -> None:
    """A rule with `=` and a command allows exactly that command, whatever the rest of the input is."""
    lists = permissions_for(allow=("shell(=ls *.py)",))
    assert decide(shell_call("ls *.py", input={"timeout": 3}), lists).behavior == "allow"
    assert decide(shell_call("ls a.py"), lists).behavior == "ask"
    assert decide(edit_call("x"), permissions_for(allow=("edit_file(=x)",))).behavior == "ask"


def test_a_grant_is_for_the_resolved_paths_and_hosts() -> None:
    """If a link now leads to another path, or the host or the input changes, approval is requested again."""
    linked = edit_call("a", paths=(ResolvedPath("b", True),))
    sent = write_call("x", hosts=("a.com",))
    bare = write_call(None, input={"to": "a"})
    changed = [
        (linked, edit_call("a", paths=(ResolvedPath("c", True),))),
        (linked, edit_call("a", paths=())),
        (sent, write_call("x", hosts=("b.com",))),
        (bare, write_call(None, input={"to": "b"})),
        (bare, write_call('{"input":{"to":"a"},"subject":null}')),
    ]
    for call, other in changed:
        _, grant = consented(pending_decision(call), ALWAYS, call)
        assert grant is not None
        assert decide(call, Permissions(), grants={grant}).behavior == "allow"
        assert decide(other, Permissions(), grants={grant}).behavior == "ask"


def test_a_call_without_identity_is_allowed_once() -> None:
    """If a call has no subject and its input has no text form, an approval for the session allows only this call."""
    call = write_call(None, input={"to": object()})
    decision, grant = consented(pending_decision(call), ALWAYS, call)
    assert (decision.behavior, grant) == ("allow", None)
    known = write_call(
        None, input={"to": {"at": Path("a"), "on": {date(2026, 1, 2)}}, "as": b"\xff"}
    )
    _, grant = consented(pending_decision(known), ALWAYS, known)
    assert grant is not None
    assert decide(known, Permissions(), grants={grant}).behavior == "allow"
    assert decide(call, Permissions(), grants={grant}).behavior == "ask"


def test_an_approval_required_by_an_ask_rule_is_valid_once() -> None:
    """If an ask rule requires approval, an approval is valid once, because ask rules take precedence over a grant."""
    question = pending_decision(shell_call(), permissions_for(ask=("shell(git *)",)))
    decision, grant = consented(question, ALWAYS, shell_call())
    assert (decision.behavior, grant) == ("allow", None)
    assert "each time" in decision.reason


def test_denials_precede_grants() -> None:
    """Deny rules, plan mode and safety checks take precedence over a person's grants."""
    call = shell_call("git status")
    _, grant = consented(pending_decision(call), ALWAYS, call)
    assert grant is not None
    for permissions in (permissions_for(deny=("shell(git *)",)), permissions_for("plan")):
        assert decide(call, permissions, grants={grant}).behavior == "deny"
    over = decide(call, Permissions(), grants={grant}, over_budget=True)
    assert over.behavior == "deny"
