"""Approvals: the meaning of an answer, and what it grants."""

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

from .calls import editing, permitted, running, writing

YES = {"behavior": "allow", "resolver": "person"}
ALWAYS = {**YES, "scope": "session"}


def asked(call: Any, permissions: Permissions | None = None) -> Any:
    decision = decide(call, permissions or Permissions())
    assert decision.behavior == "ask"
    return decision


def test_a_person_allows_once() -> None:
    """A yes lets this call run and grants nothing for later."""
    decision, grant = consented(asked(running()), YES, running())
    assert (decision.behavior, decision.reason_type, decision.resolver) == (
        "allow",
        "person",
        "person",
    )
    assert grant is None


def test_a_person_denies_and_the_model_hears_why() -> None:
    """The person's text is in the reason."""
    answer = {"behavior": "deny", "resolver": "person", "reason": "Use the tests first."}
    decision, grant = consented(asked(running()), answer, running())
    assert (decision.behavior, decision.reason_type, decision.resolver) == (
        "deny",
        "person",
        "person",
    )
    assert "Use the tests first." in decision.reason
    assert grant is None


def test_a_classifier_allows_once_and_denies() -> None:
    """Its answer is attributed to it, and grants nothing for later."""
    for behavior, words in (("allow", "has allowed this call"), ("deny", "has denied this call")):
        answer = {"behavior": behavior, "resolver": "classifier", "reason": "Seen.", "usage": []}
        decision, grant = consented(asked(running()), answer, running())
        assert (decision.behavior, decision.reason_type, decision.resolver, grant) == (
            behavior,
            "classifier",
            "classifier",
            None,
        )
        assert f"The classifier {words}. It says: Seen." in decision.reason


def test_a_classifier_cannot_allow_what_a_person_has_to_be_asked() -> None:
    """If a rule requires a person, its yes is ignored, and its no counts; it never grants anything for a session."""
    ask = Permissions(rules=(Rule.parse("*", "ask", "user"),))
    yes = {"behavior": "allow", "resolver": "classifier"}
    decision, _ = consented(asked(running(), ask), yes, running())
    assert (decision.behavior, decision.resolver) == ("deny", "unattended")
    decision, _ = consented(asked(running(), ask), {**yes, "behavior": "deny"}, running())
    assert (decision.behavior, decision.resolver) == ("deny", "classifier")
    decision, grant = consented(asked(running()), {**yes, "scope": "session"}, running())
    assert (decision.behavior, decision.resolver, grant) == ("deny", "unattended", None)


def test_nobody_to_ask_means_deny() -> None:
    """Without a person, the call is denied for the reason for which approval was requested."""
    question = asked(running())
    decision, grant = consented(question, {"behavior": "deny", "resolver": "unattended"}, running())
    assert (decision.behavior, decision.resolver, grant) == ("deny", "unattended", None)
    assert decision.reason_type == question.reason_type
    assert question.reason in decision.reason
    assert "Nobody is there" in decision.reason


@pytest.mark.parametrize(
    ("answer", "why"),
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
        ({"behavior": "allow", "resolver": "unattended"}, "a missing approver cannot allow"),
        ({"behavior": "allow", "resolver": "model"}, "its resolver"),
        ({**YES, "scope": "forever"}, "its scope"),
        ({**YES, "scope": None}, "its scope"),
        ({**YES, "reason": 1}, "its reason"),
        ({**YES, "input": {"command": "git status"}}, "changes the input"),
        ({**YES, "until": "tomorrow"}, "a field 'until'"),
        (dict[Any, Any]([(1, 2)]), "a field '1'"),
    ],
)
def test_what_is_no_answer_is_a_denial_that_says_so(answer: Any, why: str) -> None:
    """Anything malformed denies, visibly, and grants nothing."""
    decision, grant = consented(asked(running()), answer, running())
    assert (decision.behavior, decision.resolver, grant) == ("deny", "unattended", None)
    assert "is not valid: " in decision.reason
    assert why in decision.reason


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
def test_only_a_plain_yes_of_a_person_allows(answer: Any) -> None:
    """Of all possible answers, only the exact form of a yes lets a call run."""
    decision, grant = consented(asked(running()), answer, running())
    if decision.behavior == "allow":
        assert (answer["behavior"], answer["resolver"]) == ("allow", "person")
        assert set(answer) <= {"behavior", "resolver", "scope", "reason"}
    else:
        assert grant is None


def test_an_answer_changes_no_decision_that_asked_nothing() -> None:
    """A denial stays a denial, whatever the answer."""
    denied = decide(running(), permitted(deny=("shell",)))
    assert consented(denied, ALWAYS, running()) == (denied, None)


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
def test_a_grant_is_for_this_very_call(command: str, mode: Any) -> None:
    """A yes for the session lets the same call run again, but no other call, and not the same with other input."""
    call, before = running(command), permitted(mode)
    decision, grant = consented(asked(call, before), ALWAYS, call)
    assert grant is not None
    assert (decision.rule, decision.source) == (grant, "session")
    assert Rule.parse(str(grant), "allow", "session") == grant
    grants = {grant}
    again = decide(running(command), before, grants=grants)
    assert (again.behavior, again.rule, again.source) == ("allow", grant, "session")
    for other in (command + " ", command + " x", "git log x", command.replace("*", "-p")):
        if other != command:
            assert decide(running(other), before, grants=grants).behavior == "ask"
    beside = running(command, input={"of": command, "as": "root"})
    assert decide(beside, before, grants=grants).behavior == "ask"
    assert decide(writing(command), before, grants=grants).behavior == "ask"


def test_a_grant_covers_the_whole_input() -> None:
    """Input outside the subject counts as well: another amount or another content needs approval again."""
    pairs: list[tuple[Any, dict[str, Any], dict[str, Any]]] = [
        (writing, {"to": "bob", "cents": 1}, {"to": "bob", "cents": 10**9}),
        (writing, {"to": "bob", "cents": 1}, {"to": "bob", "cents": True}),
        (writing, {"to": "bob", "cents": 1}, {"to": "bob", "cents": "1"}),
        (editing, {"file": "x", "content": "a"}, {"file": "x", "content": "b"}),
        (editing, {"file": "x", "content": "a"}, {"file": "x", "content": "a", "mode": None}),
    ]
    for make, seen, other in pairs:
        call = make("x", input=seen)
        _, grant = consented(asked(call), ALWAYS, call)
        assert grant is not None
        assert decide(call, Permissions(), grants={grant}).behavior == "allow"
        turned = make("x", input=dict(reversed(seen.items())))
        assert decide(turned, Permissions(), grants={grant}).behavior == "allow"
        assert decide(make("x", input=other), Permissions(), grants={grant}).behavior == "ask"


def test_the_number_of_grants_costs_nothing() -> None:
    """A call is looked up in a set of grants, however many there are, without iterating over them."""
    calls = [writing(str(number)) for number in range(1000)]
    grants = {consented(asked(call), ALWAYS, call)[1] for call in calls}
    assert len(grants) == 1000

    class Held(frozenset[Rule]):
        def __iter__(self) -> Iterator[Rule]:
            raise AssertionError("the grants are gone through one by one")

    held = Held(grant for grant in grants if grant)
    assert decide(writing("none"), Permissions(), grants=held).behavior == "ask"
    assert decide(writing("999"), Permissions(), grants=held).behavior == "allow"


def test_among_grants_only_this_very_call_counts() -> None:
    """A grant that is wider than one call, or not from a person, permits nothing."""
    call = running("git status")
    for behavior, pattern, source in NO_GRANTS:
        rule = Rule(behavior, "shell", pattern, source)  # type: ignore[arg-type]
        assert decide(call, Permissions(), grants=(rule,)).behavior == "ask"


def test_a_tool_that_no_rule_can_name_is_asked_each_time() -> None:
    """If a rule cannot contain the tool's name, a yes is valid once; nothing is raised."""
    call = replace(writing("x"), tool="two words")
    decision, grant = consented(asked(call), ALWAYS, call)
    assert (decision.behavior, grant) == ("allow", None)
    assert "once" in decision.reason
    _, other = consented(asked(writing("x")), ALWAYS, writing("x"))
    assert other is not None
    assert decide(call, Permissions(), grants={other}).behavior == "ask"


def test_an_exact_rule_that_was_written_speaks_of_the_subject() -> None:
    """`=` and a command allows exactly that command, whatever the rest of the input."""
    lists = permitted(allow=("shell(=ls *.py)",))
    assert decide(running("ls *.py", input={"timeout": 3}), lists).behavior == "allow"
    assert decide(running("ls a.py"), lists).behavior == "ask"
    assert decide(editing("x"), permitted(allow=("edit_file(=x)",))).behavior == "ask"


def test_a_grant_holds_for_the_paths_and_hosts_that_were_seen() -> None:
    """If a link leads elsewhere, or the host or input changes, approval is requested again."""
    linked = editing("a", paths=(ResolvedPath("b", True),))
    sent = writing("x", hosts=("a.com",))
    bare = writing(None, input={"to": "a"})
    changed = [
        (linked, editing("a", paths=(ResolvedPath("c", True),))),
        (linked, editing("a", paths=())),
        (sent, writing("x", hosts=("b.com",))),
        (bare, writing(None, input={"to": "b"})),
        (bare, writing('{"input":{"to":"a"},"subject":null}')),
    ]
    for call, other in changed:
        _, grant = consented(asked(call), ALWAYS, call)
        assert grant is not None
        assert decide(call, Permissions(), grants={grant}).behavior == "allow"
        assert decide(other, Permissions(), grants={grant}).behavior == "ask"


def test_a_call_that_nothing_tells_from_others_is_allowed_once() -> None:
    """Without a subject and with an input that has no text form, a yes for the session grants nothing."""
    call = writing(None, input={"to": object()})
    decision, grant = consented(asked(call), ALWAYS, call)
    assert (decision.behavior, grant) == ("allow", None)
    known = writing(None, input={"to": {"at": Path("a"), "on": {date(2026, 1, 2)}}, "as": b"\xff"})
    _, grant = consented(asked(known), ALWAYS, known)
    assert grant is not None
    assert decide(known, Permissions(), grants={grant}).behavior == "allow"
    assert decide(call, Permissions(), grants={grant}).behavior == "ask"


def test_where_a_rule_asks_a_yes_holds_once() -> None:
    """Ask comes before allow, so a grant would have no effect."""
    question = asked(running(), permitted(ask=("shell(git *)",)))
    decision, grant = consented(question, ALWAYS, running())
    assert (decision.behavior, grant) == ("allow", None)
    assert "each time" in decision.reason


def test_a_grant_never_beats_what_denies() -> None:
    """Deny rules, plan mode and safety checks take precedence over a person's grants."""
    call = running("git status")
    _, grant = consented(asked(call), ALWAYS, call)
    assert grant is not None
    for permissions in (permitted(deny=("shell(git *)",)), permitted("plan")):
        assert decide(call, permissions, grants={grant}).behavior == "deny"
    over = decide(call, Permissions(), grants={grant}, over_budget=True)
    assert over.behavior == "deny"
