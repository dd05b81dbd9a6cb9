"""Parse the answers of hooks and combine them into one decision.

An answer is a JSON value from outside, so every part of it is validated. An invalid answer counts as an error and has
no effect, except that a veto in it still counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from agentobs.agent.hooks.declarations import ALLOWED_EFFECTS, Effect, HookEvent
from agentobs.agent.model.thinking import is_thinking
from agentobs.agent.permissions import Behavior
from agentobs.provider.anthropic.messages import conversation_error
from agentobs.records.canonical_json import Json
from agentobs.world import GATED_EVENTS

Outcome = Literal["success", "blocking", "non_blocking_error", "cancelled"]
"""How a hook ended: without objection, with a veto, with an error (which is ignored), or cancelled."""

OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)

FIELDS = (
    "outcome",
    "reason",
    "decision",
    "input",
    "output",
    "is_error",
    "messages",
    "context",
    "stop",
    "usage",
)
"""The fields of an answer; all are optional."""

REASON_CHARS_MAX = 10_000
"""Longer reasons are cut, because the model reads them. Our choice."""


@dataclass(frozen=True, slots=True)
class HookAnswer:
    """The answer of one hook."""

    outcome: Outcome = "success"
    reason: str = field(default="", repr=False)
    """The reason for the answer. The model sees the reason for a veto."""
    decision: Behavior | None = None
    """The decision on the call, in place of a person's decision; `deny` is a veto."""
    input: Any = field(default=None, repr=False)
    """The tool's replacement input, an object; None keeps the input."""
    output: Any = field(default=None, repr=False)
    """The replacement for the tool's output, a string or content blocks; None keeps the output. Before a call, it is
    the answer in place of the tool, which then does not run.
    """
    is_error: bool = False
    """Whether the answer in place of the tool is an error."""
    messages: Any = field(default=None, repr=False)
    """The messages to send instead, in the provider's format; None keeps the messages."""
    context: str = field(default="", repr=False)
    """Text to add for the model."""
    stop: bool = False
    """Whether the run stops here."""
    usage: tuple[Json, ...] = ()
    """Usage of the model requests made for this answer: `model`, and `usage` as the provider reported it.
    """

    def as_json(self) -> Json:
        """Return the object that `parse` accepts."""
        changes = {"input": self.input, "output": self.output, "messages": self.messages}
        others = {
            "reason": self.reason,
            "decision": self.decision,
            "is_error": self.is_error,
            "context": self.context,
            "stop": self.stop,
            "usage": list(self.usage),
        }
        # An empty output is a change: the model then gets an empty output.
        present = {name: value for name, value in changes.items() if value is not None}
        present |= {name: value for name, value in others.items() if value}
        return {"outcome": self.outcome, **present}


@dataclass(frozen=True, slots=True)
class Verdict:
    """The combined answers of all hooks that ran for one event."""

    blocked: bool = False
    """Whether any hook vetoed."""
    reason: str = field(default="", repr=False)
    """The reasons of the hooks that blocked the event, decided on the call or stopped the run, one per line."""
    decision: Behavior | None = None
    """The strictest decision: deny before ask before allow."""
    input: Any = field(default=None, repr=False)
    """The tool's replacement input, or None."""
    output: Any = field(default=None, repr=False)
    """The replacement for the tool's output, or None."""
    is_error: bool = False
    """Whether this output, which a hook gives in place of the tool, is an error."""
    messages: Any = field(default=None, repr=False)
    """The messages to send instead, or None."""
    context: tuple[str, ...] = field(default=(), repr=False)
    """Texts to add for the model, in table order."""
    stop: bool = False
    """Whether the run stops here."""
    usage: tuple[Json, ...] = ()
    """Usage of the model requests made inside the hooks."""
    overridden: tuple[int, ...] = ()
    """The indexes of the answers whose change of the input, output or messages was replaced by another answer."""


def parse(
    answer: Any, event: HookEvent | None = None, stored: Sequence[Json] | None = None
) -> HookAnswer:
    """Parse and validate an answer. Never raises.

    Args:
        answer: the JSON value.
        event: the event, which determines the allowed effects. None allows all effects.
        stored: the messages that the answer may replace; None accepts any thinking in their replacement.
    """
    if answer is None and event in GATED_EVENTS:
        return HookAnswer("blocking", "This world does not answer hooks.")
    if not isinstance(answer, dict):
        return _invalid_answer({}, f"the answer is {_type_name(answer)}, not an object", event)
    answer = {name: value for name, value in answer.items() if value is not None}
    problem = _fault(answer, event)
    if problem is None and "messages" in answer:
        problem = _messages_fault(answer["messages"], stored)
    if problem is not None:
        return _invalid_answer(answer, problem, event)
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
        answer.get("is_error", False),
        answer.get("messages"),
        answer.get("context", ""),
        answer.get("stop", False),
        usage,
    )


def verdict(answers: Sequence[HookAnswer]) -> Verdict:
    """Combine the answers to one event, in table order.

    One veto blocks the event. If several hooks change the input or the output, the last change in table order is used.
    Hooks run in parallel, so no hook sees the change of another. A blocked event is never changed.
    """
    vetoes = [each for each in answers if each.outcome == "blocking"]
    decision = _strictest(answers)
    blocked = bool(vetoes) or decision == "deny"
    stop = any(each.stop for each in answers)
    explaining = vetoes or [
        each for each in answers if each.stop or (decision and each.decision == decision)
    ]
    combined = Verdict(
        blocked=blocked,
        reason="\n".join(dict.fromkeys(each.reason for each in explaining if each.reason)),
        decision="deny" if decision is not None and blocked else decision,
        context=tuple(each.context for each in answers if each.context),
        stop=stop,
        usage=tuple(each for answer in answers for each in answer.usage),
    )
    if blocked:
        return combined
    new_input, overridden = _last_value([each.input for each in answers])
    output, overridden_outputs = _last_value([each.output for each in answers])
    if output is not None and new_input is not None:
        # The tool does not run, so its input no longer matters.
        overridden = [index for index, each in enumerate(answers) if each.input is not None]
        new_input = None
    messages, overridden_messages = _last_value([each.messages for each in answers])
    is_error = [each.is_error for each in answers if each.output is not None][-1:] == [True]
    return replace(
        combined,
        input=new_input,
        output=output,
        is_error=is_error,
        messages=messages,
        overridden=tuple(sorted({*overridden, *overridden_outputs, *overridden_messages})),
    )


def usage_in(answer: Any) -> list[Json]:
    """Return the `model` and the `usage` of each model request made inside an exchange.

    Answers of hooks and answers to approval requests contain this usage, so that a replay counts the same usage.
    """
    usages = _as_list(answer.get("usage")) if isinstance(answer, dict) else ()
    return [each for each in usages if _is_usage(each)]


def is_output(value: Any) -> bool:
    """Return whether a value is valid as the output of a tool: a string or content blocks."""
    if isinstance(value, str):
        return True
    return isinstance(value, list) and all(
        isinstance(each, dict) and isinstance(each.get("type"), str) for each in value
    )


def _strictest(answers: Sequence[HookAnswer]) -> Behavior | None:
    decisions = {each.decision for each in answers}
    by_strictness: tuple[Behavior, ...] = ("deny", "ask", "allow")
    return next((each for each in by_strictness if each in decisions), None)


def _last_value(values: Sequence[Any]) -> tuple[Any, list[int]]:
    indexes = [index for index, value in enumerate(values) if value is not None]
    return (values[indexes[-1]], indexes[:-1]) if indexes else (None, [])


def _invalid_answer(answer: Json, problem: str, event: HookEvent | None) -> HookAnswer:
    """Return an error for an invalid answer, or a veto if the answer contains one.

    The veto counts, because an error in another field must not let a call run.
    """
    usage = tuple(each for each in _as_list(answer.get("usage")) if _is_usage(each))
    if _is_veto(answer) and _is_allowed(event, "block"):
        veto_reason = answer.get("reason")
        reason = veto_reason if isinstance(veto_reason, str) and veto_reason else "It was blocked."
        decision: Behavior | None = "deny" if answer.get("decision") == "deny" else None
        return HookAnswer("blocking", reason[:REASON_CHARS_MAX], decision, usage=usage)
    veto_reason = answer.get("reason")
    explanation = (
        f" Its reason: {veto_reason}" if isinstance(veto_reason, str) and veto_reason else ""
    )
    return HookAnswer(
        "non_blocking_error", f"{problem}.{explanation}"[:REASON_CHARS_MAX], usage=usage
    )


def _is_veto(answer: dict[str, Any]) -> bool:
    return bool(answer.get("outcome") == "blocking" or answer.get("decision") == "deny")


def _is_allowed(event: HookEvent | None, effect: Effect) -> bool:
    return event is None or effect in ALLOWED_EFFECTS[event]


def _fault(answer: Json, event: HookEvent | None) -> str | None:
    """Describe why an answer is not valid; None if it is valid."""
    unknown = [name for name in answer if name not in FIELDS]
    if unknown:
        return f"the answer has an unknown field {str(unknown[0])[:100]!r}; the fields are {', '.join(FIELDS)}"
    validity = {
        "outcome": answer.get("outcome", "success") in OUTCOMES,
        "reason": isinstance(answer.get("reason", ""), str),
        "decision": answer.get("decision", "deny") in ("allow", "deny", "ask"),
        "input": isinstance(answer.get("input", {}), dict),
        "output": is_output(answer.get("output", "")),
        "is_error": isinstance(answer.get("is_error", False), bool),
        "context": isinstance(answer.get("context", ""), str),
        "stop": isinstance(answer.get("stop", False), bool),
        "usage": all(_is_usage(each) for each in _as_list(answer.get("usage", []), [None])),
    }
    problem = next((name for name, is_right in validity.items() if not is_right), None)
    if problem is not None:
        return f"its field {problem} has an invalid value: {_type_name(answer[problem])}"
    if "output" in answer and "input" in answer:
        return "it has both an input and an output; a tool that does not run needs no input"
    if "is_error" in answer and (event not in (None, "pre_tool_use") or "output" not in answer):
        return "its field is_error is only valid with the output of an answer to pre_tool_use"
    return _disallowed_effect(answer, event)


def _disallowed_effect(answer: Json, event: HookEvent | None) -> str | None:
    """Describe an effect of an answer that the event does not allow; None if there is none."""
    effects: dict[Effect, bool] = {
        "block": _is_veto(answer),
        "decision": answer.get("decision") in ("allow", "ask"),
        "input": "input" in answer,
        "output": "output" in answer,
        "messages": "messages" in answer,
        "context": bool(answer.get("context")),
        "stop": answer.get("stop") is True,
    }
    disallowed = next(
        (
            name
            for name, has_effect in effects.items()
            if has_effect and not _is_allowed(event, name)
        ),
        None,
    )
    return (
        f"an answer to {event} cannot {_EFFECT_PHRASES[disallowed]}"
        if disallowed is not None
        else None
    )


_EFFECT_PHRASES: dict[Effect, str] = {
    "block": "block anything",
    "decision": "decide on a call",
    "input": "change an input",
    "output": "change an output",
    "messages": "replace messages",
    "context": "add context for the model",
    "stop": "end the run",
}


def _messages_fault(messages: Any, stored: Sequence[Json] | None) -> str | None:
    """Describe why messages cannot be sent; None if the provider would accept them.

    The provider accepts only thinking that it has written itself, so all thinking must be among the stored messages.
    """
    if not isinstance(messages, list) or not messages or not all(map(_is_message, messages)):
        return "its messages are not a list of messages with a role and content"
    if messages[0]["role"] != "user" or messages[-1]["role"] != "user":
        return "its first and its last message must be from the user"
    problem = conversation_error(messages)
    if problem is not None:
        return f"the provider would reject its messages: {problem}"
    if stored is not None:
        known = [block for message in stored for block in _blocks(message) if is_thinking(block)]
        added = [block for message in messages for block in _blocks(message) if is_thinking(block)]
        if any(block not in known for block in added):
            return "its messages contain thinking that is not in the conversation"
    return None


def _is_message(value: Any) -> bool:
    match value:
        case {"role": "user" | "assistant", "content": str() as text}:
            return bool(text.strip())
        case {"role": "user" | "assistant", "content": list() as blocks}:
            return bool(blocks) and is_output(blocks)
        case _:
            return False


def _blocks(message: Json) -> Sequence[Any]:
    return _as_list(message.get("content"))


def _is_usage(value: Any) -> bool:
    match value:
        case {"model": str(), "usage": dict()}:
            return True
        case _:
            return False


def _as_list(value: Any, default: Sequence[Any] = ()) -> Sequence[Any]:
    return value if isinstance(value, list) else default


def _type_name(value: Any) -> str:
    kinds = {
        dict: "an object",
        list: "a list",
        str: "a string",
        bool: "true or false",
        type(None): "null",
    }
    return kinds.get(type(value), "a number" if isinstance(value, int | float) else "not JSON")
