"""Properties of decisions that hold for random calls and permissions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentobs.agent.permissions import MODES, SOURCES, Call, Permissions, ResolvedPath, Rule, decide
from agentobs.agent.permissions.globs import HOLE, fits, may_fit
from agentobs.agent.permissions.rules import BEHAVIORS

STRICTNESS = {"allow": 0, "ask": 1, "deny": 2}

TOOLS = ["shell", "edit_file", "read_file", "old_name"]
PATTERNS = [
    None, "*", "**", "git *", "git status", "rm *", "python *", "src/**", "src/a.py", "*.py", "host:a.com", "host:*",
    "https://a.com/*", "=git status", "a*",
]  # fmt: skip
SUBJECTS = [
    None, "git status", "git log; rm -rf /", "git $(rm x)", "$X y", "src/a.py", "https://a.com/x", "a", "", "'",
    "x > f",
]  # fmt: skip
PATHS = [ResolvedPath("src/a.py", True), ResolvedPath("a.py", True), ResolvedPath("/etc", False)]

some_rules = st.builds(
    Rule,
    behavior=st.sampled_from(BEHAVIORS),
    tool=st.sampled_from([*TOOLS, "*", "e*"]),
    pattern=st.sampled_from(PATTERNS),
    source=st.sampled_from(SOURCES),
)
some_calls = st.builds(
    Call,
    tool_use_id=st.just("toolu_1"),
    tool=st.sampled_from(TOOLS[:3]),
    tool_class=st.sampled_from(["read", "edit", "write", "shell"]),
    subject=st.sampled_from(SUBJECTS) | st.text(max_size=12),
    aliases=st.sampled_from([(), ("old_name",)]),
    paths=st.lists(st.sampled_from(PATHS[:2]), max_size=2).map(tuple),
    hosts=st.lists(st.sampled_from(["a.com", "b.com", "A.com.", "x y"]), max_size=2).map(tuple),
    needs_permission=st.booleans(),
    destructive=st.booleans(),
)
some_permissions = st.builds(
    Permissions,
    mode=st.sampled_from(MODES),
    rules=st.lists(some_rules, max_size=5).map(tuple),
    blocked_hosts=st.sampled_from([(), ("b.com",)]),
    bypass_confirmed=st.just(True),
)


def with_rule(permissions: Permissions, rule: Rule) -> Permissions:
    return replace(permissions, rules=(*permissions.rules, rule))


@given(some_calls, some_permissions, st.booleans())
def test_every_call_gets_one_decision(
    call: Call, permissions: Permissions, over_budget: bool
) -> None:
    """Every call gets a decision with a reason, without an exception, and always the same decision."""
    decision = decide(call, permissions, over_budget=over_budget)
    assert decision == decide(call, permissions, over_budget=over_budget)
    assert decision.behavior in STRICTNESS
    assert decision.reason.endswith(".")
    assert (decision.rule is None) == (decision.source is None)
    if decision.behavior == "ask":
        assert permissions.mode != "dontAsk"
    permissions.shadowed()
    assert all(rule.behavior == "allow" for rule in permissions.stripped)


@pytest.mark.slow
@given(some_calls, some_permissions, st.randoms(use_true_random=False))
def test_the_order_of_rules_does_not_matter(
    call: Call, permissions: Permissions, random_order: Any
) -> None:
    """If rules are reordered or repeated, the decision and its reason stay the same."""
    shuffled = [*permissions.rules, *permissions.rules[:2]]
    random_order.shuffle(shuffled)
    assert decide(call, replace(permissions, rules=tuple(shuffled))) == decide(call, permissions)


@given(some_calls, some_permissions, st.data())
def test_the_source_of_a_rule_does_not_change_a_decision(
    call: Call, permissions: Permissions, data: Any
) -> None:
    """The source of a rule is displayed, but does not affect decisions."""
    resourced = [
        replace(rule, source=data.draw(st.sampled_from(SOURCES))) for rule in permissions.rules
    ]
    other = decide(call, replace(permissions, rules=tuple(resourced)))
    assert other.behavior == decide(call, permissions).behavior


@given(some_calls, some_permissions, some_rules)
def test_a_denial_by_rule_plan_or_check_is_never_overridden(
    call: Call, permissions: Permissions, rule: Rule
) -> None:
    """No additional rule, in particular no allow rule, overrides a denial by a rule, by plan mode or by a
    safety check.
    """
    before = decide(call, permissions)
    if before.behavior == "deny" and (before.reason_type != "mode" or permissions.mode == "plan"):
        after = decide(call, with_rule(permissions, rule))
        assert after.behavior == "deny"


@given(some_calls, some_permissions, some_rules)
def test_an_allow_rule_never_overrides_an_ask_rule(
    call: Call, permissions: Permissions, rule: Rule
) -> None:
    """If a rule requires approval, an additional allow rule changes nothing; an allow rule never makes a decision
    stricter.
    """
    before = decide(call, permissions)
    after = decide(call, with_rule(permissions, replace(rule, behavior="allow")))
    assert STRICTNESS[after.behavior] <= STRICTNESS[before.behavior]
    if before.rule is not None and before.rule.behavior != "allow":
        assert after.behavior == before.behavior


@given(some_calls, some_permissions, some_rules, st.sampled_from(["deny", "ask"]))
def test_a_deny_or_ask_rule_never_permits_a_call(
    call: Call, permissions: Permissions, rule: Rule, behavior: Any
) -> None:
    """An additional deny or ask rule never makes a decision more permissive."""
    before = decide(call, permissions)
    after = decide(call, with_rule(permissions, replace(rule, behavior=behavior)))
    assert STRICTNESS[after.behavior] >= STRICTNESS[before.behavior]


@given(some_calls, some_permissions, st.sampled_from(MODES))
def test_no_mode_bypasses_a_safety_check(call: Call, permissions: Permissions, mode: Any) -> None:
    """An exhausted budget, a path outside of the roots and a blocked host deny the call in every mode, whatever the
    rules are.
    """
    in_mode = replace(permissions, mode=mode)
    outside = replace(call, paths=(*call.paths, PATHS[2]))
    blocked = replace(call, hosts=(*call.hosts, "B.COM."))
    for decision in (
        decide(call, in_mode, over_budget=True),
        decide(outside, in_mode),
        decide(blocked, replace(in_mode, blocked_hosts=("b.com",))),
    ):
        assert (decision.behavior, decision.reason_type) == ("deny", "safety_check")


@given(some_calls, some_permissions)
def test_a_shadowed_rule_never_matters(call: Call, permissions: Permissions) -> None:
    """If the rules that are listed as shadowed are removed, no decision changes."""
    for found in permissions.shadowed():
        remaining = tuple(rule for rule in permissions.rules if rule != found.rule)
        assert (
            decide(call, replace(permissions, rules=remaining)).behavior
            == decide(call, permissions).behavior
        )


texts = st.text(alphabet="ab *", max_size=8)


@pytest.mark.slow
@settings(max_examples=300)
@given(
    texts,
    st.text(alphabet="ab " + HOLE, max_size=6),
    st.lists(st.text("ab ", max_size=3), min_size=6),
)
def test_a_match_with_holes_holds_for_all_values(
    pattern: str, text: str, values: list[str]
) -> None:
    """If `fits` matches a text with holes, it matches for all values of the holes; if it matches for one value,
    `may_fit` matches the text with holes.
    """
    filled = text
    for value in values:
        filled = filled.replace(HOLE, value, 1)
    if fits(pattern, text):
        assert fits(pattern, filled)
    if fits(pattern, filled):
        assert may_fit(pattern, text)
