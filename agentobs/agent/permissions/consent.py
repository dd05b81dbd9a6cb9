"""Turn the answer to an approval request into a final decision.

The answer is a JSON value from outside, so every part of it is validated. An invalid answer counts as a denial whose
reason describes the error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agentobs.agent.permissions.decision import Decision, grant_of
from agentobs.agent.permissions.rules import Behavior, Call, Rule

_FIELDS = {
    "behavior": ("allow", "deny"),
    "resolver": ("person", "classifier", "unattended"),
    "scope": ("once", "session"),
}
_OPTIONAL = {"scope", "reason", "usage", "updated_input"}

CONSECUTIVE_DENIALS_MAX, DENIALS_MAX = 3, 20
"""After this many denials by the classifier (consecutive, and in total), only a person may approve calls."""


@dataclass(frozen=True, slots=True)
class Denials:
    """How often the classifier has denied calls of a conversation. Answers of a person are not counted."""

    in_a_row: int = 0
    """The number of denials since the classifier last allowed a call."""
    in_all: int = 0

    @property
    def escalates(self) -> bool:
        """Whether only a person may approve calls from now on.

        After that many denials, either the classifier or the agent is probably wrong.
        """
        return self.in_a_row >= CONSECUTIVE_DENIALS_MAX or self.in_all >= DENIALS_MAX

    def after_answer(self, answer: Any) -> Denials:
        """Return the counts after an answer to an approval request."""
        match answer:
            case {"resolver": "classifier", "behavior": "deny"}:
                return Denials(self.in_a_row + 1, self.in_all + 1)
            case {"resolver": "classifier", "behavior": "allow"}:
                return Denials(0, self.in_all)
            case _:
                return self


def consented(pending: Decision, answer: Any, call: Call) -> tuple[Decision, Rule | None]:
    """Return the final decision after an answer, and the rule that the answer grants for the rest of the session.

    The answer is `{"behavior": "allow" or "deny", "resolver": "person", "classifier" or "unattended", "scope": "once"
    or "session", "reason": "...", "usage": [...], "updated_input": {...}}`; the last four are optional. A decision
    other than ask is returned unchanged. If a person changed the input, `call` must be the changed call, and the rules
    must already be checked for it. A granted rule covers only this exact call (see `exact_call`), because the person
    saw nothing else. A classifier cannot grant a rule, and cannot allow a call for which a rule requires a person.
    Never raises.
    """
    if pending.behavior != "ask":
        return pending, None
    problem = _fault(answer)
    if problem is not None:
        return _denied_without_approval(
            pending, f"The answer to the approval request is not valid: {problem}."
        ), None
    reason_given = answer.get("reason", "").strip()
    if answer["resolver"] == "unattended":
        return _denied_without_approval(
            pending, reason_given or "Nobody is available to approve it."
        ), None
    if answer["resolver"] == "classifier":
        return _classifier_decision(pending, answer["behavior"], reason_given), None
    quote = f" Their reason: {reason_given}" if reason_given else ""
    if answer["behavior"] == "deny":
        return _person_decision(pending, "deny", "A person denied this call." + quote), None
    if answer.get("scope") != "session":
        return _person_decision(pending, "allow", "A person approved this call." + quote), None
    if _is_requested_by_rule(pending):
        reason = "A person approved this call once; a rule requires approval each time." + quote
        return _person_decision(pending, "allow", reason), None
    grant = grant_of(call)
    if grant is None:
        reason = (
            "A person approved this call once, because it cannot be distinguished from other calls."
            + quote
        )
        return _person_decision(pending, "allow", reason), None
    reason = "A person approved this call for the rest of the session." + quote
    return Decision("allow", "person", "session", grant, reason, "person"), grant


def updated_input(answer: Any) -> dict[str, Any] | None:
    """Return the input with which a person has approved a call; None if the input is unchanged or the answer is not
    valid.
    """
    if _fault(answer) is not None:
        return None
    changed: dict[str, Any] | None = answer.get("updated_input")
    return changed


def _classifier_decision(pending: Decision, behavior: Behavior, explanation: str) -> Decision:
    """Return the decision for a classifier's answer. An approval is ignored if only a person may approve."""
    if behavior == "allow" and needs_person(pending):
        return _denied_without_approval(
            pending, "A classifier would allow it, but a person must approve it."
        )
    verb = "allowed" if behavior == "allow" else "denied"
    quote = f" Its reason: {explanation}" if explanation else ""
    reason = f"The classifier {verb} this call.{quote}"
    if behavior == "deny":
        reason += (
            " Do not try to work around this: find a safer way, or report what you could not do."
        )
    return Decision(behavior, "classifier", pending.source, pending.rule, reason, "classifier")


def needs_person(pending: Decision) -> bool:
    """Return whether a rule or a hook requests approval, so that only a person may approve, not a classifier."""
    return _is_requested_by_rule(pending) or pending.reason_type == "hook"


def _is_requested_by_rule(pending: Decision) -> bool:
    """Return whether a rule requests approval.

    Such a rule is checked before any grant, so it requests approval each time.
    """
    return pending.rule is not None


def _fault(answer: Any) -> str | None:
    """Describe why an answer is not valid; None if it is valid."""
    if not isinstance(answer, dict):
        return "it is not an object"
    unknown = sorted(str(name) for name in answer if name not in {*_FIELDS, *_OPTIONAL})
    if "input" in unknown:
        return "it has a field 'input'; use 'updated_input' to change the input"
    if unknown:
        return f"it has a field {unknown[0]!r}"
    for name, values in _FIELDS.items():
        if name not in answer and name in _OPTIONAL:
            continue
        if not isinstance(answer.get(name), str) or answer[name] not in values:
            return f"its {name} is not one of {', '.join(values)}"
    if not isinstance(answer.get("reason", ""), str):
        return "its reason is not a string"
    if not isinstance(answer.get("usage", []), list):
        return "its usage is not a list"
    if "updated_input" in answer:
        if not isinstance(answer["updated_input"], dict):
            return "its updated_input is not an object"
        if answer["resolver"] != "person" or answer["behavior"] != "allow":
            return "only a person who allows a call can change its input"
    if answer["resolver"] != "person" and answer.get("scope", "once") != "once":
        return "only a person can allow a call for the rest of the session"
    if answer["resolver"] == "unattended" and answer["behavior"] == "allow":
        return "an unattended answer cannot allow a call"
    return None


def _person_decision(pending: Decision, behavior: Behavior, reason: str) -> Decision:
    return Decision(behavior, "person", pending.source, pending.rule, reason, "person")


def _denied_without_approval(pending: Decision, reason: str) -> Decision:
    """Return the denial of a call that needed approval and did not get it."""
    text = (
        f"{pending.reason} {reason} "
        "Find a way that needs no approval, or report what you could not do."
    )
    return Decision("deny", pending.reason_type, pending.source, pending.rule, text, "unattended")
