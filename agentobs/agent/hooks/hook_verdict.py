"""Parse the answers of hooks and combine them into one decision.

An answer is a JSON value from outside, so it is validated in full. An invalid answer is an error with a description and
has no effect, except that a plain veto in it still counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from agentobs.agent.hooks.declarations import MAY, Effect, HookEvent
from agentobs.agent.permissions import Behavior
from agentobs.records.canonical_json import Json

Outcome = Literal["success", "blocking", "non_blocking_error", "cancelled"]
"""How a hook ended: not an objection; a veto; a failure, which is ignored; or it was cancelled."""

OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)

FIELDS = ("outcome", "reason", "decision", "input", "output", "context", "stop", "usage")
"""The fields of an answer; all are optional."""

REASON_CHARS_MAX = 10_000
"""Longer reasons are cut, because the model reads them. Our choice."""


@dataclass(frozen=True, slots=True)
class HookAnswer:
    """The answer of one hook."""

    outcome: Outcome = "success"
    reason: str = field(default="", repr=False)
    """The reason; the model sees the reason of a veto."""
    decision: Behavior | None = None
    """Whether the call may run, in place of a person's answer; `deny` is a veto."""
    input: Any = field(default=None, repr=False)
    """The tool's replacement input, an object; None keeps the input."""
    output: Any = field(default=None, repr=False)
    """The replacement for the tool's output, a text or content blocks; None keeps the output."""
    context: str = field(default="", repr=False)
    """Text to add for the model."""
    stop: bool = False
    """Whether the run stops here."""
    usage: tuple[Json, ...] = ()
    """Usage of the model requests made for this answer: `model`, and `usage` as the provider reported it.
    """

    def as_json(self) -> Json:
        """Return the object that `parse` accepts."""
        fields = {
            "reason": self.reason,
            "decision": self.decision,
            "input": self.input,
            "output": self.output,
            "context": self.context,
            "stop": self.stop,
            "usage": list(self.usage),
        }
        present = {
            name: value for name, value in fields.items() if value not in (None, "", False, [])
        }
        return {"outcome": self.outcome, **present}


@dataclass(frozen=True, slots=True)
class Verdict:
    """The combined decision of all hooks that ran for one event."""

    blocked: bool = False
    """Whether any hook vetoed."""
    reason: str = field(default="", repr=False)
    """Why the event is blocked or decided, or the run stops: the reasons of the hooks, one per line.
    """
    decision: Behavior | None = None
    """The strictest decision: deny before ask before allow."""
    input: Any = field(default=None, repr=False)
    """The tool's replacement input, or None."""
    output: Any = field(default=None, repr=False)
    """The replacement for the tool's output, or None."""
    context: tuple[str, ...] = field(default=(), repr=False)
    """Texts to add for the model, in table order."""
    stop: bool = False
    """Whether the run stops here."""
    usage: tuple[Json, ...] = ()
    """Usage of the model requests made inside the hooks."""
    overridden: tuple[int, ...] = ()
    """Indexes of the answers whose change of input or output was overridden by another answer."""


def parse(answer: Any, event: HookEvent | None = None) -> HookAnswer:
    """Parse and validate an answer. Never raises.

    Args:
        answer: the JSON value.
        event: the event; an effect that it does not allow is an error. None validates the format
            only.
    """
    if not isinstance(answer, dict):
        return _faulty({}, f"the answer is {_named(answer)}, not an object", event)
    answer = {name: value for name, value in answer.items() if value is not None}
    wrong = _fault(answer, event)
    if wrong is not None:
        return _faulty(answer, wrong, event)
    outcome = answer.get("outcome", "success")
    reason = answer.get("reason", "")[:REASON_CHARS_MAX]
    usage = tuple(answer.get("usage", ()))
    if _is_veto(answer):
        decision: Behavior | None = "deny" if answer.get("decision") == "deny" else None
        return HookAnswer("blocking", reason, decision, stop=answer.get("stop", False), usage=usage)
    if outcome != "success":
        return HookAnswer(outcome, reason, usage=usage)
    return HookAnswer(
        "success",
        reason,
        answer.get("decision"),
        answer.get("input"),
        answer.get("output"),
        answer.get("context", ""),
        answer.get("stop", False),
        usage,
    )


def verdict(answers: Sequence[HookAnswer]) -> Verdict:
    """Combine the answers to one event, given in table order.

    One veto blocks. Of several changes, the last in table order is used. Hooks run in parallel, so no hook sees the
    change of another. A blocked event is never changed.
    """
    vetoes = [each for each in answers if each.outcome == "blocking"]
    decision = _strictest(answers)
    blocked = bool(vetoes) or decision == "deny"
    stop = any(each.stop for each in answers)
    speaking = vetoes or [
        each for each in answers if each.stop or (decision and each.decision == decision)
    ]
    found = Verdict(
        blocked=blocked,
        reason="\n".join(dict.fromkeys(each.reason for each in speaking if each.reason)),
        decision="deny" if decision is not None and blocked else decision,
        context=tuple(each.context for each in answers if each.context),
        stop=stop,
        usage=tuple(each for answer in answers for each in answer.usage),
    )
    if blocked:
        return found
    new_input, overridden = _last([each.input for each in answers])
    output, also = _last([each.output for each in answers])
    lost = tuple(sorted({*overridden, *also}))
    return replace(found, input=new_input, output=output, overridden=lost)


def usage_in(answer: Any) -> list[Json]:
    """Return the `model` and the `usage` of each model request made inside an exchange.

    Answers of hooks and to approval requests carry them, so that a replay counts the same usage.
    """
    listed = _listed(answer.get("usage")) if isinstance(answer, dict) else ()
    return [each for each in listed if _is_usage(each)]


def is_output(value: Any) -> bool:
    """Return whether a value is valid as a tool's output: a text, or content blocks."""
    if isinstance(value, str):
        return True
    return isinstance(value, list) and all(
        isinstance(each, dict) and isinstance(each.get("type"), str) for each in value
    )


def _strictest(answers: Sequence[HookAnswer]) -> Behavior | None:
    decisions = {each.decision for each in answers}
    strict: tuple[Behavior, ...] = ("deny", "ask", "allow")
    return next((each for each in strict if each in decisions), None)


def _last(values: Sequence[Any]) -> tuple[Any, list[int]]:
    places = [at for at, value in enumerate(values) if value is not None]
    return (values[places[-1]], places[:-1]) if places else (None, [])


def _faulty(answer: Json, wrong: str, event: HookEvent | None) -> HookAnswer:
    """Ignore an invalid answer except for a plain veto, because another error in it must not let a
    call run.
    """
    usage = tuple(each for each in _listed(answer.get("usage")) if _is_usage(each))
    if _is_veto(answer) and _may(event, "block"):
        veto_reason = answer.get("reason")
        reason = veto_reason if isinstance(veto_reason, str) and veto_reason else "It was blocked."
        decision: Behavior | None = "deny" if answer.get("decision") == "deny" else None
        return HookAnswer("blocking", reason[:REASON_CHARS_MAX], decision, usage=usage)
    veto_reason = answer.get("reason")
    words = f" It says: {veto_reason}" if isinstance(veto_reason, str) and veto_reason else ""
    return HookAnswer("non_blocking_error", f"{wrong}.{words}"[:REASON_CHARS_MAX], usage=usage)


def _is_veto(answer: dict[str, Any]) -> bool:
    return bool(answer.get("outcome") == "blocking" or answer.get("decision") == "deny")


def _may(event: HookEvent | None, effect: Effect) -> bool:
    return event is None or effect in MAY[event]


def _fault(answer: Json, event: HookEvent | None) -> str | None:
    """Describe why an answer is not valid; None if it is valid."""
    unknown = [name for name in answer if name not in FIELDS]
    if unknown:
        return f"the response has a field {str(unknown[0])[:100]!r}, and there are only {', '.join(FIELDS)}"
    fits = {
        "outcome": answer.get("outcome", "success") in OUTCOMES,
        "reason": isinstance(answer.get("reason", ""), str),
        "decision": answer.get("decision", "deny") in ("allow", "deny", "ask"),
        "input": isinstance(answer.get("input", {}), dict),
        "output": is_output(answer.get("output", "")),
        "context": isinstance(answer.get("context", ""), str),
        "stop": isinstance(answer.get("stop", False), bool),
        "usage": all(_is_usage(each) for each in _listed(answer.get("usage", []), [None])),
    }
    wrong = next((name for name, is_right in fits.items() if not is_right), None)
    if wrong is not None:
        return f"its field {wrong} is {_named(answer[wrong])}, which is not valid"
    return _beyond(answer, event)


def _beyond(answer: Json, event: HookEvent | None) -> str | None:
    """Describe an effect of an answer that the event does not allow; None if there is none."""
    does: dict[Effect, bool] = {
        "block": _is_veto(answer),
        "decision": answer.get("decision") in ("allow", "ask"),
        "input": "input" in answer,
        "output": "output" in answer,
        "context": bool(answer.get("context")),
        "stop": answer.get("stop") is True,
    }
    beyond = next((name for name, done in does.items() if done and not _may(event, name)), None)
    return f"an answer to {event} cannot {_DOES[beyond]}" if beyond is not None else None


_DOES: dict[Effect, str] = {
    "block": "block anything",
    "decision": "decide on a call",
    "input": "change an input",
    "output": "change an output",
    "context": "add context for the model",
    "stop": "end the run",
}


def _is_usage(value: Any) -> bool:
    match value:
        case {"model": str(), "usage": dict()}:
            return True
        case _:
            return False


def _listed(value: Any, otherwise: Sequence[Any] = ()) -> Sequence[Any]:
    return value if isinstance(value, list) else otherwise


def _named(value: Any) -> str:
    kinds = {
        dict: "an object",
        list: "a list",
        str: "a text",
        bool: "true or false",
        type(None): "null",
    }
    return kinds.get(type(value), "a number" if isinstance(value, int | float) else "no JSON")
