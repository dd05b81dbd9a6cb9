"""Interpret the recorded answers of hooks in the same way as the loop did. All functions are pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentobs.agent.conversation_hooks import objection
from agentobs.agent.hooks import HookAnswer, HookEvent, Verdict, parse, verdict
from agentobs.agent.hooks.declarations import ALLOWED_EFFECTS
from agentobs.agent.lifecycle_hooks import DEFAULT_STOP_OBJECTION, STOP_BLOCKS_MAX
from agentobs.agent.permissions import Denials
from agentobs.agent.tools.results import render
from agentobs.records.canonical_json import Json
from agentobs.records.exchanges import ToolAnswer, ToolExchange, WorldExchange

NOT_INSPECTED = ToolAnswer(
    "The run was interrupted before the hooks checked the result of this tool, so the result is not shown.",
    is_error=True,
    outcome="aborted",
)
"""Replaces a result that hooks should have inspected but did not, because they might have changed it."""

_POST_TOOL_EVENTS: tuple[HookEvent, ...] = ("post_tool_use", "post_tool_use_failure")


@dataclass(frozen=True, slots=True)
class HookOutcome:
    """The combined answers of the hooks to one event."""

    event: HookEvent
    payload: Json
    """The payload that the first hook got."""
    verdict: Verdict

    @property
    def tool_use_id(self) -> str | None:
        """The ID of the tool call that the event is about; None if it is not about a call."""
        tool_use_id = self.payload.get("tool_use_id")
        return tool_use_id if isinstance(tool_use_id, str) else None


def hook_outcomes(exchanges: Iterable[WorldExchange]) -> list[HookOutcome]:
    """Return the outcome of each event for which hooks ran, in the order of the events.

    Args:
        exchanges: the world exchanges of one lane, in order.
    """
    occasions: dict[str, list[WorldExchange]] = {}
    for each in exchanges:
        payload = each.question.payload
        if (
            each.question.kind == "hook"
            and isinstance(payload, dict)
            and payload.get("event") in ALLOWED_EFFECTS
        ):
            key = each.question.key.removesuffix(f":{payload.get('hook')}")
            occasions.setdefault(key, []).append(each)
    return [
        HookOutcome(
            answered[0].question.payload["event"],
            answered[0].question.payload,
            verdict([_answer(each) for each in answered]),
        )
        for answered in occasions.values()
    ]


def hook_names(exchanges: Iterable[WorldExchange]) -> set[str]:
    """Return the names of the hooks that ran, so that the `once` hooks among them do not run again."""
    return {
        str(each.question.payload.get("hook"))
        for each in exchanges
        if each.question.kind == "hook" and isinstance(each.question.payload, dict)
    }


def denials_after(exchanges: Iterable[WorldExchange], denials: Denials) -> Denials:
    """Return how often the classifier has denied calls; `denials` are the denials before these exchanges."""
    for each in exchanges:
        if each.question.kind == "consent":
            denials = denials.after_answer(each.answer)
    return denials


def results_after_hooks(
    executed: Sequence[ToolExchange], exchanges: Sequence[WorldExchange]
) -> dict[str, ToolAnswer]:
    """Return the results of calls as the model sees them, after the hooks, by tool call ID.

    Args:
        executed: the executed calls.
        exchanges: the world exchanges of their lane.
    """
    changed = {
        each.tool_use_id: each.verdict.output
        for each in hook_outcomes(exchanges)
        if each.event in _POST_TOOL_EVENTS and each.verdict.output is not None
    }
    inspections = {
        (each.question.payload.get("tool_use_id"), each.question.payload.get("hook"))
        for each in exchanges
        if each.question.kind == "hook" and each.question.payload.get("event") in _POST_TOOL_EVENTS
    }
    results = {}
    for each in executed:
        tool_use_id, answer = each.question.tool_use_id, each.answer
        if any((tool_use_id, hook) not in inspections for hook in each.inspected_by):
            answer = NOT_INSPECTED
        elif tool_use_id in changed:
            content = render(changed[tool_use_id])
            answer = replace(answer, content=content, outcome="substituted")
        results[tool_use_id] = answer
    return results


def added_context(outcomes: Sequence[HookOutcome], call_ids: Sequence[str]) -> list[str]:
    """Return the texts that hooks add after the results of these calls."""
    texts: list[str] = []
    for each in outcomes:
        if each.tool_use_id not in call_ids:
            continue
        texts += each.verdict.context
        if each.event in _POST_TOOL_EVENTS and each.verdict.blocked:
            texts.append(objection(str(each.payload.get("tool_name")), each.verdict.reason))
    return texts


def stop_objections(outcomes: Sequence[HookOutcome], turn: int) -> list[str]:
    """Return the reasons of the hooks that kept an agent from ending after a turn."""
    return [
        each.verdict.reason or DEFAULT_STOP_OBJECTION
        for each in outcomes
        if each.event in ("stop", "sub_agent_stop")
        and each.payload.get("turn") == turn
        and each.verdict.blocked
        and not each.verdict.stop
        and each.payload.get("blocked_before", 0) < STOP_BLOCKS_MAX
    ]


def changed_inputs(outcomes: Sequence[HookOutcome]) -> dict[str, Any]:
    """Return the inputs of calls that hooks have changed, by tool call ID."""
    return {
        each.tool_use_id: each.verdict.input
        for each in outcomes
        if each.event == "pre_tool_use"
        and each.tool_use_id is not None
        and each.verdict.input is not None
    }


def _answer(exchange: WorldExchange) -> HookAnswer:
    payload = exchange.question.payload
    answer = parse(exchange.answer, payload["event"])
    if payload.get("background") and answer.outcome == "success":
        return HookAnswer(usage=answer.usage, reason=answer.reason)
    return answer
