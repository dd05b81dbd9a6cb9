"""Decide whether a call runs, as a pure function of the call and the permissions.

The order is the design: safety checks, deny rules, plan mode, ask rules, allow rules, and finally the mode's default.
No later step overrides an earlier one.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from agentobs.agent.permissions.hosts import Match, blocked_host, blocked_in_text, is_url, readings
from agentobs.agent.permissions.modes import Mode, changes_nothing, unruled
from agentobs.agent.permissions.permissions import Permissions, is_stripped
from agentobs.agent.permissions.rule_matcher import CallView, allowing, forbids
from agentobs.agent.permissions.rules import (
    EXACT,
    Behavior,
    Call,
    ResolvedPath,
    Rule,
    Source,
    exact,
    order,
)
from agentobs.errors import UsageError

ReasonType = Literal["rule", "mode", "safety_check", "hook", "person", "classifier"]
"""What a decision is based on."""

Resolver = Literal["rule", "mode", "safety_check", "hook", "person", "classifier", "unattended"]
"""Who answered; for a decision to ask, who requires the answer. `unattended` if there was no valid
answer.
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
    """A sentence for the model and for users. It is content, because it names what the call accesses.
    """
    resolver: Resolver


_Matches = Sequence[tuple[Rule, Match]]
"""The deny and ask rules in order, each with whether it matches the call."""


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
        grants: the rules that `consented` returned in this session. Pass a set: only the rule for
            this exact call is looked up, so the number of grants does not matter.
        over_budget: whether the session's budget of money or turns is used up.
    """
    sight = CallView.of(call)
    mode = permissions.mode
    rules = _ordered(permissions.rules)
    matches = [(rule, forbids(rule, sight)) for rule in rules if rule.behavior != "allow"]
    return (
        _unsafe(sight, permissions.blocked_hosts, over_budget)
        or _denied(matches)
        or _unplanned(call, mode)
        or _ask_decision(matches, mode)
        or _allowed(rules, sight, mode)
        or _granted(call, grants)
        or _by_mode(sight, mode)
    )


@functools.lru_cache(maxsize=16)
def _ordered(rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    return tuple(order(rules))


def _unsafe(sight: CallView, blocked: tuple[str, ...], over_budget: bool) -> Decision | None:
    call = sight.call
    if over_budget:
        return _held(
            "The budget of this session is used up, so no more tools run. "
            "Say what is done and what is left."
        )
    outside = next((path.path for path in call.paths if not _is_inside(path)), None)
    if outside is not None:
        return _held(
            f"{_shown(outside)} lies outside of the folders that this session may touch "
            "(symbolic links are followed). Work within them."
        )
    host = blocked_host(call.hosts, blocked)
    if host is None:
        host = _blocked_in_subject(sight, blocked)
    if host is None:
        return None
    if not readings(host):
        return _held(
            f"The host {_shown(host)} cannot be read, so nobody can say that it is not blocked. "
            "Name one host plainly."
        )
    return _held(f"The host {_shown(host)} is blocked. Do not try to reach it another way.")


def _blocked_in_subject(sight: CallView, blocked: tuple[str, ...]) -> str | None:
    """Find a blocked host in a command, or in a subject that is a URL, for tools that do not report
    hosts.
    """
    subject = sight.call.subject or ""
    if sight.reading is not None:
        return blocked_in_text("\n".join((subject, *sight.written)), blocked)
    return blocked_host([subject], blocked) if is_url(subject) else None


def _is_inside(path: ResolvedPath) -> bool:
    return path.inside is True and ".." not in path.path.split("/") and "\0" not in path.path


def _denied(matches: _Matches) -> Decision | None:
    sure = (rule for rule, match in matches if match == "yes" and rule.behavior == "deny")
    rule = next(sure, None)
    if rule is None:
        return None
    return _ruled("deny", rule, f"{_named(rule)} denies this call. Do not try to get around it.")


def _unplanned(call: Call, mode: Mode) -> Decision | None:
    if mode != "plan" or changes_nothing(call, mode):
        return None
    return _moded(
        "deny",
        f"Plan mode only reads, so {call.tool} does not run. Change nothing: look at what you need, then "
        "present a plan of the change and wait for it to be accepted.",
    )


def _ask_decision(matches: _Matches, mode: Mode) -> Decision | None:
    """Request approval if an ask rule matches, or if an ask or deny rule may match."""
    sure = next((rule for rule, match in matches if match == "yes"), None)
    unsure = next((rule for rule, match in matches if match == "doubt"), None)
    rule = sure or unsure
    if rule is None:
        return None
    why = f"{_named(rule)} asks for consent to this call."
    if sure is None:
        why = f"{_named(rule)} may mean this call; one cannot be sure without running it."
    return _ruled("ask", rule, why) if mode != "dontAsk" else _nobody_asked(why, rule)


def _allowed(rules: Iterable[Rule], sight: CallView, mode: Mode) -> Decision | None:
    is_shell = sight.call.tool_class == "shell"
    holding = [
        rule
        for rule in rules
        if rule.behavior == "allow" and not (is_shell and is_stripped(rule, mode))
    ]
    found = allowing(holding, sight)
    if not found:
        return None
    return _ruled("allow", found[0], f"{' and '.join(map(str, found))} may run.")


def grant_of(call: Call) -> Rule | None:
    """Return the rule that grants this exact call for a session; None if the call cannot be
    identified exactly.
    """
    own = exact(call)
    try:
        return None if own is None else Rule("allow", call.tool, EXACT + own, "session")
    except UsageError:  # the tool's name is not valid in a rule
        return None


def _granted(call: Call, grants: Collection[Rule]) -> Decision | None:
    grant = grant_of(call) if grants else None
    if grant is None or grant not in grants:
        return None
    return _ruled(
        "allow", grant, "A person has allowed this very call for the rest of the session."
    )


def _by_mode(sight: CallView, mode: Mode) -> Decision:
    call = sight.call
    behavior = unruled(call, mode)
    match behavior:
        case "allow":
            return _moded("allow", f"The mode {mode} lets this call of {call.tool} run.")
        case "ask" | "deny":
            why = f"No rule allows this call of {call.tool}."
            if sight.doubt is not None:
                why = f"No rule can allow this command, for {sight.doubt}."
            return _moded("ask", why) if behavior == "ask" else _nobody_asked(why, None)


def _nobody_asked(why: str, rule: Rule | None) -> Decision:
    reason = (
        f"{why} It would need a person's consent, and in the mode dontAsk nobody is asked. "
        "Find a way that needs none, or say what you could not do."
    )
    return Decision("deny", "mode", rule.source if rule else None, rule, reason, "mode")


def _held(reason: str) -> Decision:
    return Decision("deny", "safety_check", None, None, reason, "safety_check")


def _ruled(behavior: Behavior, rule: Rule, reason: str) -> Decision:
    return Decision(behavior, "rule", rule.source, rule, reason, "rule")


def _moded(behavior: Behavior, reason: str) -> Decision:
    return Decision(behavior, "mode", None, None, reason, "mode")


def _named(rule: Rule) -> str:
    return f"The {rule.source.replace('_', ' ')} rule {rule}"


def _shown(text: str) -> str:
    """Return a text for use in a sentence: quoted, truncated, without control characters."""
    return repr(text if len(text) <= 200 else text[:200] + "…")
