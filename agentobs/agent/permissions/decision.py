"""Decide whether a call runs, as a pure function of the call and the permissions.

The steps have a fixed order: safety checks, deny rules, plan mode, ask rules, allow rules, grants, and the default of
the mode. The first step that decides wins.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from agentobs.agent.permissions.hosts import (
    Match,
    blocked_host,
    blocked_in_text,
    interpretations,
    is_url,
)
from agentobs.agent.permissions.modes import Mode, changes_nothing, mode_default
from agentobs.agent.permissions.permissions import Permissions, is_stripped
from agentobs.agent.permissions.rule_matcher import CallView, allowing_rules, forbids
from agentobs.agent.permissions.rules import (
    EXACT,
    Behavior,
    Call,
    ResolvedPath,
    Rule,
    Source,
    exact_call,
    order,
)
from agentobs.errors import UsageError

ReasonType = Literal["rule", "mode", "safety_check", "hook", "person", "classifier"]
"""The basis of a decision."""

Resolver = Literal["rule", "mode", "safety_check", "hook", "person", "classifier", "unattended"]
"""Who made a decision or, for the decision `ask`, who requires the approval. `unattended` means that approval was
requested but not given.
"""


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a call runs, and why."""

    behavior: Behavior
    reason_type: ReasonType
    source: Source | None
    """The source of the rule; None if no rule decided."""
    rule: Rule | None = field(repr=False)
    reason: str = field(repr=False)
    """The reason, as sentences for the model and for users. It is content, because it may contain paths and hosts."""
    resolver: Resolver


_Matches = Sequence[tuple[Rule, Match]]
"""The deny and ask rules in order, each with the result of matching it against the call."""


def decide(
    call: Call,
    permissions: Permissions,
    *,
    grants: Collection[Rule] = (),
    over_budget: bool = False,
) -> Decision:
    """Return whether a call is allowed, denied or needs approval.

    Args:
        call: the call, with validated input and resolved paths.
        permissions: the permissions of the session.
        grants: the rules that `consented` returned in this session. Pass a set, because only the
            rule for this exact call is looked up.
        over_budget: whether the session's budget of money or turns is used up.
    """
    view = CallView.of(call)
    mode = permissions.mode
    rules = _ordered(permissions.rules)
    matches = [(rule, forbids(rule, view)) for rule in rules if rule.behavior != "allow"]
    return (
        _safety_denial(view, permissions.blocked_hosts, over_budget)
        or _rule_denial(matches)
        or _plan_mode_denial(call, mode)
        or _approval_request(matches, mode)
        or _rule_approval(rules, view, mode)
        or _grant_approval(call, grants)
        or _mode_default_decision(view, mode)
    )


@functools.lru_cache(maxsize=16)
def _ordered(rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    return tuple(order(rules))


def _safety_denial(view: CallView, blocked: tuple[str, ...], over_budget: bool) -> Decision | None:
    call = view.call
    if over_budget:
        return _safety_decision(
            "The budget of this session is used up, so no more tools can run. "
            "Report what is done and what is left."
        )
    outside = next((path.path for path in call.paths if not _is_inside(path)), None)
    if outside is not None:
        return _safety_decision(
            f"{_quoted(outside)} is outside the folders that this session may access "
            "(symbolic links are followed). Work within these folders."
        )
    host = blocked_host(call.hosts, blocked)
    if host is None:
        host = _blocked_in_subject(view, blocked)
    if host is None:
        return None
    if not interpretations(host):
        return _safety_decision(
            f"The host {_quoted(host)} cannot be parsed, so it cannot be checked against the blocked hosts. "
            "Use a plain host name."
        )
    return _safety_decision(
        f"The host {_quoted(host)} is blocked. Do not try to reach it another way."
    )


def _blocked_in_subject(view: CallView, blocked: tuple[str, ...]) -> str | None:
    """Return a blocked host in a command or in a subject that is a URL.

    This check is for tools that do not declare their hosts.
    """
    subject = view.call.subject or ""
    if view.commands is not None:
        return blocked_in_text("\n".join((subject, *view.written)), blocked)
    return blocked_host([subject], blocked) if is_url(subject) else None


def _is_inside(path: ResolvedPath) -> bool:
    return path.inside is True and ".." not in path.path.split("/") and "\0" not in path.path


def _rule_denial(matches: _Matches) -> Decision | None:
    certain = (rule for rule, match in matches if match == "yes" and rule.behavior == "deny")
    rule = next(certain, None)
    if rule is None:
        return None
    return _rule_decision(
        "deny", rule, f"{_rule_name(rule)} denies this call. Do not try to work around it."
    )


def _plan_mode_denial(call: Call, mode: Mode) -> Decision | None:
    if mode != "plan" or changes_nothing(call, mode):
        return None
    return _mode_decision(
        "deny",
        f"Plan mode is read-only, so {call.tool} does not run. Do not change anything: read what you need, then "
        "present a plan for the change and wait until it is accepted.",
    )


def _approval_request(matches: _Matches, mode: Mode) -> Decision | None:
    """Return a request for approval if an ask rule matches, or if an ask or deny rule may match."""
    certain = next((rule for rule, match in matches if match == "yes"), None)
    possible = next((rule for rule, match in matches if match == "doubt"), None)
    rule = certain or possible
    if rule is None:
        return None
    problem = f"{_rule_name(rule)} requires approval for this call."
    if certain is None:
        problem = f"{_rule_name(rule)} may apply to this call; that cannot be determined without running it."
    return (
        _rule_decision("ask", rule, problem)
        if mode != "dontAsk"
        else _dont_ask_denial(problem, rule)
    )


def _rule_approval(rules: Iterable[Rule], view: CallView, mode: Mode) -> Decision | None:
    is_shell = view.call.tool_class == "shell"
    effective = [
        rule
        for rule in rules
        if rule.behavior == "allow" and not (is_shell and is_stripped(rule, mode))
    ]
    found = allowing_rules(effective, view)
    if not found:
        return None
    return _rule_decision("allow", found[0], f"Allowed by {' and '.join(map(str, found))}.")


def grant_of(call: Call) -> Rule | None:
    """Return the rule that allows this exact call for a session, or None if the call cannot be identified exactly."""
    call_text = exact_call(call)
    try:
        return None if call_text is None else Rule("allow", call.tool, EXACT + call_text, "session")
    except UsageError:  # the tool's name is not valid in a rule
        return None


def _grant_approval(call: Call, grants: Collection[Rule]) -> Decision | None:
    grant = grant_of(call) if grants else None
    if grant is None or grant not in grants:
        return None
    return _rule_decision(
        "allow", grant, "A person approved this exact call for the rest of the session."
    )


def _mode_default_decision(view: CallView, mode: Mode) -> Decision:
    call = view.call
    behavior = mode_default(call, mode)
    match behavior:
        case "allow":
            return _mode_decision("allow", f"The mode {mode} allows this call of {call.tool}.")
        case "ask" | "deny":
            problem = f"No rule allows this call of {call.tool}."
            if view.doubt is not None:
                problem = f"No rule can allow this command, because {view.doubt}."
            return (
                _mode_decision("ask", problem)
                if behavior == "ask"
                else _dont_ask_denial(problem, None)
            )


def _dont_ask_denial(problem: str, rule: Rule | None) -> Decision:
    reason = (
        f"{problem} It needs a person's approval, and the mode dontAsk does not request approval. "
        "Find a way that needs no approval, or report what you could not do."
    )
    return Decision("deny", "mode", rule.source if rule else None, rule, reason, "mode")


def _safety_decision(reason: str) -> Decision:
    return Decision("deny", "safety_check", None, None, reason, "safety_check")


def _rule_decision(behavior: Behavior, rule: Rule, reason: str) -> Decision:
    return Decision(behavior, "rule", rule.source, rule, reason, "rule")


def _mode_decision(behavior: Behavior, reason: str) -> Decision:
    return Decision(behavior, "mode", None, None, reason, "mode")


def _rule_name(rule: Rule) -> str:
    return f"The {rule.source.replace('_', ' ')} rule {rule}"


def _quoted(text: str) -> str:
    """Quote a text for use in a sentence: truncated, with control characters escaped."""
    return repr(text if len(text) <= 200 else text[:200] + "…")
