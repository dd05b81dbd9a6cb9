"""Consent: what follows from the answer to a decision to ask.

The answer comes from the outside as a JSON value, so nothing in it is taken on trust: what is not exactly
an answer is a denial that says so.
"""

from __future__ import annotations

from typing import Any

from agentobs.agent.permissions.decide import Decision, grant_of
from agentobs.agent.permissions.rules import Behaviour, Call, Rule

_FIELDS = {
    "behaviour": ("allow", "deny"),
    "by": ("person", "nobody"),
    "scope": ("once", "session"),
}
_OPTIONAL = {"scope", "reason"}


def consented(asked: Decision, answer: Any, call: Call) -> tuple[Decision, Rule | None]:
    """Return the final decision after an answer, and what it grants for the rest of the session.

    The answer is `{"behaviour": "allow" or "deny", "by": "person" or "nobody", "scope": "once" or "session",
    "reason": "..."}`; the last two may be left out. A decision that is not to ask stays as it is. A grant
    holds for this very call (see `exact`), never for more than the person saw. Whatever comes, this
    raises nothing.
    """
    if asked.behaviour != "ask":
        return asked, None
    wrong = _fault(answer)
    if wrong is not None:
        return _unanswered(
            asked, f"The answer to the question for consent is not valid: {wrong}."
        ), None
    said = answer.get("reason", "").strip()
    if answer["by"] == "nobody":
        return _unanswered(asked, said or "Nobody is there to give consent."), None
    words = f" In their words: {said}" if said else ""
    if answer["behaviour"] == "deny":
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


def _asks_each_time(asked: Decision) -> bool:
    """Return whether a rule wanted to know: it comes before any grant, so it will ask again."""
    return asked.rule is not None


def _fault(answer: Any) -> str | None:
    """Return what is wrong with an answer."""
    if not isinstance(answer, dict):
        return "it is no object"
    unknown = sorted(str(name) for name in answer if name not in {*_FIELDS, *_OPTIONAL})
    if "input" in unknown:
        return "it changes the input, which no answer may"
    if unknown:
        return f"it has a field {unknown[0]!r}"
    for name, known in _FIELDS.items():
        if name not in answer and name in _OPTIONAL:
            continue
        if not isinstance(answer.get(name), str) or answer[name] not in known:
            return f"its {name} is none of {', '.join(known)}"
    if not isinstance(answer.get("reason", ""), str):
        return "its reason is no text"
    if answer["by"] == "nobody" and answer["behaviour"] == "allow":
        return "nobody cannot allow"
    return None


def _answered(asked: Decision, behaviour: Behaviour, reason: str) -> Decision:
    return Decision(behaviour, "person", asked.source, asked.rule, reason, "person")


def _unanswered(asked: Decision, reason: str) -> Decision:
    """Deny, for the reason that consent was needed and did not come."""
    text = (
        f"{asked.reason} {reason} Find a way that needs no consent, or say what you could not do."
    )
    return Decision("deny", asked.reason_type, asked.source, asked.rule, text, "nobody")
