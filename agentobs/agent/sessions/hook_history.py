"""Read the recorded answers of hooks as the loop read them; pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentobs.agent.conversation_hooks import objection
from agentobs.agent.hooks import HookAnswer, HookEvent, Verdict, parse, verdict
from agentobs.agent.hooks.declarations import MAY
from agentobs.agent.lifecycle_hooks import ON, STOP_BLOCKS_MAX
from agentobs.agent.permissions import Denials
from agentobs.agent.tools.results import render
from agentobs.records.canonical_json import Json
from agentobs.records.exchanges import ToolAnswer, ToolExchange, WorldExchange

UNSEEN = ToolAnswer(
    "The run was interrupted before the hooks had looked at the result of this tool, so it is not shown.",
    is_error=True,
    outcome="aborted",
)
"""Placeholder for a result that hooks should have inspected, because they might have changed it."""

_AFTER: tuple[HookEvent, ...] = ("post_tool_use", "post_tool_use_failure")


@dataclass(frozen=True, slots=True)
class Fired:
    """The combined answers of hooks to one event."""

    event: HookEvent
    asked: Json
    """The question to the first hook."""
    verdict: Verdict

    @property
    def tool_use_id(self) -> str | None:
        """The call that the event is about."""
        found = self.asked.get("tool_use_id")
        return found if isinstance(found, str) else None


def fired(exchanges: Iterable[WorldExchange]) -> list[Fired]:
    """Return the answers of hooks by event, in the order in which the hooks ran.

    Args:
        exchanges: the world exchanges of one lane, in order.
    """
    occasions: dict[str, list[WorldExchange]] = {}
    for each in exchanges:
        payload = each.question.asked
        if (
            each.question.kind == "hook"
            and isinstance(payload, dict)
            and payload.get("event") in MAY
        ):
            key = each.question.key.removesuffix(f":{payload.get('hook')}")
            occasions.setdefault(key, []).append(each)
    return [
        Fired(
            ran[0].question.asked["event"],
            ran[0].question.asked,
            verdict([_answer(each) for each in ran]),
        )
        for ran in occasions.values()
    ]


def names(exchanges: Iterable[WorldExchange]) -> set[str]:
    """Return the names of the hooks that ran; `once` hooks among them are done."""
    return {
        str(each.question.asked.get("hook"))
        for each in exchanges
        if each.question.kind == "hook" and isinstance(each.question.asked, dict)
    }


def denials(exchanges: Iterable[WorldExchange], before: Denials) -> Denials:
    """Return how often the classifier has denied calls."""
    for each in exchanges:
        if each.question.kind == "consent":
            before = before.after(each.answer)
    return before


def seen(ran: Sequence[ToolExchange], exchanges: Sequence[WorldExchange]) -> dict[str, ToolAnswer]:
    """Return the results of calls as the model sees them, after the hooks."""
    changed = {
        each.tool_use_id: each.verdict.output
        for each in fired(exchanges)
        if each.event in _AFTER and each.verdict.output is not None
    }
    changed_by_hook = {
        (each.question.asked.get("tool_use_id"), each.question.asked.get("hook"))
        for each in exchanges
        if each.question.kind == "hook" and each.question.asked.get("event") in _AFTER
    }
    found = {}
    for each in ran:
        name, answer = each.question.tool_use_id, each.answer
        if any((name, hook) not in changed_by_hook for hook in each.inspected_by):
            answer = UNSEEN
        elif name in changed:
            answer = replace(answer, content=render(changed[name]), outcome="substituted")
        found[name] = answer
    return found


def context(answers: Sequence[Fired], calls: Sequence[str]) -> list[str]:
    """Return the context that hooks add to the results of these calls."""
    texts: list[str] = []
    for each in answers:
        if each.tool_use_id not in calls:
            continue
        texts += each.verdict.context
        if each.event in _AFTER and each.verdict.blocked:
            texts.append(objection(str(each.asked.get("tool_name")), each.verdict.reason))
    return texts


def kept_on(answers: Sequence[Fired], turn: int) -> list[str]:
    """Return the reasons of hooks that kept an agent from ending after a turn."""
    return [
        each.verdict.reason or ON
        for each in answers
        if each.event in ("stop", "sub_agent_stop")
        and each.asked.get("turn") == turn
        and each.verdict.blocked
        and not each.verdict.stop
        and each.asked.get("blocked_before", 0) < STOP_BLOCKS_MAX
    ]


def inputs(answers: Sequence[Fired]) -> dict[str, Any]:
    """Return the inputs of calls that hooks changed."""
    return {
        each.tool_use_id: each.verdict.input
        for each in answers
        if each.event == "pre_tool_use"
        and each.tool_use_id is not None
        and each.verdict.input is not None
    }


def _answer(exchange: WorldExchange) -> HookAnswer:
    payload = exchange.question.asked
    answer = parse(exchange.answer, payload["event"])
    if payload.get("background") and answer.outcome == "success":
        return HookAnswer(usage=answer.usage, reason=answer.reason)
    return answer
