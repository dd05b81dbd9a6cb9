"""Turn the answer to an approval request into a final decision.

The answer is a JSON value from outside, so it is validated in full. An invalid answer counts as a
denial that names the fault.
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
_OPTIONAL = {"scope", "reason", "usage"}

DENIALS_IN_A_ROW_MAX, DENIALS_MAX = 3, 20
"""After this many classifier denials, consecutive or in total, only a person may approve calls."""


@dataclass(frozen=True, slots=True)
class Denials:
    """How often the classifier has denied calls of a conversation. Answers from other sources are not counted."""

    in_a_row: int = 0
    """Consecutive denials since the classifier last allowed a call."""
    in_all: int = 0

    @property
    def escalates(self) -> bool:
        """Whether only a person may approve from now on, because either the classifier or the agent
        is wrong.
        """
        return self.in_a_row >= DENIALS_IN_A_ROW_MAX or self.in_all >= DENIALS_MAX

    def after(self, answer: Any) -> Denials:
        """Return the counts after an answer to an approval request."""
        match answer:
            case {"resolver": "classifier", "behavior": "deny"}:
                return Denials(self.in_a_row + 1, self.in_all + 1)
            case {"resolver": "classifier", "behavior": "allow"}:
                return Denials(0, self.in_all)
            case _:
                return self


def consented(asked: Decision, answer: Any, call: Call) -> tuple[Decision, Rule | None]:
    """Return the final decision after an answer, and the rule that it grants for the rest of the
    session.

    The answer is `{"behavior": "allow" or "deny", "resolver": "person", "classifier" or "unattended", "scope": "once"
    or "session", "reason": "...", "usage": [...]}`; the last three are optional. A decision other than ask is returned
    unchanged. A grant covers only this exact call (see `exact`), never more than the person saw. A classifier cannot
    grant anything for later, and cannot allow a call for which a rule requires a person. Never raises.
    """
    if asked.behavior != "ask":
        return asked, None
    wrong = _fault(answer)
    if wrong is not None:
        return _unanswered(
            asked, f"The response to the consent request is not valid: {wrong}."
        ), None
    given_reason = answer.get("reason", "").strip()
    if answer["resolver"] == "unattended":
        return _unanswered(asked, given_reason or "Nobody is there to give consent."), None
    if answer["resolver"] == "classifier":
        return _classified(asked, answer["behavior"], given_reason), None
    words = f" In their words: {given_reason}" if given_reason else ""
    if answer["behavior"] == "deny":
        return _answered(asked, "deny", "A person has denied this call." + words), None
    if answer.get("scope") != "session":
        return _answered(asked, "allow", "A person has allowed this call." + words), None
    if _asks_each_time(asked):
        reason = "A person has allowed this call, once: a rule wants it asked each time." + words
        return _answered(asked, "allow", reason), None
    grant = grant_of(call)
    if grant is None:
        reason = "A person has allowed this call, once: nothing tells it from others." + words
        return _answered(asked, "allow", reason), None
    reason = "A person has allowed this call for the rest of the session." + words
    return Decision("allow", "person", "session", grant, reason, "person"), grant


def _classified(pending: Decision, behavior: Behavior, explanation: str) -> Decision:
    """Return the decision for a classifier's answer; its approval is ignored if a person is required."""
    if behavior == "allow" and needs_person(pending):
        return _unanswered(pending, "A classifier would allow it, and a person has to be asked.")
    done = "allowed" if behavior == "allow" else "denied"
    words = f" It says: {explanation}" if explanation else ""
    reason = f"The classifier has {done} this call.{words}"
    if behavior == "deny":
        reason += " Do not try to get around it: find a safer way, or say what you could not do."
    return Decision(behavior, "classifier", pending.source, pending.rule, reason, "classifier")


def needs_person(asked: Decision) -> bool:
    """Return whether a person must answer, not a classifier, because a rule or a hook requests
    approval.
    """
    return _asks_each_time(asked) or asked.reason_type == "hook"


def _asks_each_time(pending: Decision) -> bool:
    """Return whether a rule requested approval. Such a rule is checked before any grant, so it will
    ask again.
    """
    return pending.rule is not None


def _fault(answer: Any) -> str | None:
    """Describe why an answer is not valid; None if it is valid."""
    if not isinstance(answer, dict):
        return "it is not an object"
    unknown = sorted(str(name) for name in answer if name not in {*_FIELDS, *_OPTIONAL})
    if "input" in unknown:
        return "it changes the input, which is not allowed"
    if unknown:
        return f"it has a field {unknown[0]!r}"
    for name, known in _FIELDS.items():
        if name not in answer and name in _OPTIONAL:
            continue
        if not isinstance(answer.get(name), str) or answer[name] not in known:
            return f"its {name} is not one of {', '.join(known)}"
    if not isinstance(answer.get("reason", ""), str):
        return "its reason is not a string"
    if not isinstance(answer.get("usage", []), list):
        return "its usage is not a list"
    if answer["resolver"] != "person" and answer.get("scope", "once") != "once":
        return "only a person can allow a call for the rest of the session"
    if answer["resolver"] == "unattended" and answer["behavior"] == "allow":
        return "a missing approver cannot allow"
    return None


def _answered(pending: Decision, behavior: Behavior, reason: str) -> Decision:
    return Decision(behavior, "person", pending.source, pending.rule, reason, "person")


def _unanswered(pending: Decision, reason: str) -> Decision:
    """Deny because approval was needed and not given."""
    text = (
        f"{pending.reason} {reason} Find a way that needs no consent, or say what you could not do."
    )
    return Decision("deny", pending.reason_type, pending.source, pending.rule, text, "unattended")
