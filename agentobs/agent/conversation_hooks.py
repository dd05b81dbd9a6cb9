"""Run the hooks of a conversation: run each `once` hook only once, and count the usage of hooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentobs.agent.events import HookRan
from agentobs.agent.hooks import Hook, HookEvent, Occasion, Verdict, fire, matching
from agentobs.agent.permissions import Behavior, Decision, Mode
from agentobs.agent.state import Conversation
from agentobs.records.canonical_json import Json
from agentobs.records.exchanges import Place
from agentobs.world import World

HookRuns = tuple[Verdict, tuple[HookRan, ...]]
"""The combined verdict of the hooks that ran for an event, and one event per hook."""


@dataclass(frozen=True, slots=True)
class ConversationHooks:
    """The hooks of a conversation, and methods to run them."""

    world: World
    hooks: tuple[Hook, ...]
    conversation: Conversation
    """The conversation, which stores which `once` hooks have run."""
    count_usage: Callable[[Sequence[Json]], None]
    """Counts the usage of model requests that hooks made, see `Run.count_hook_usage`."""

    def matching(self, occasion: Occasion) -> tuple[Hook, ...]:
        """Return the hooks that match an event."""
        return matching(self.hooks, occasion, self.conversation.hooks_done) if self.hooks else ()

    def claim(self, occasion: Occasion) -> tuple[Hook, ...]:
        """Return the hooks that match an event, and mark the `once` hooks among them as done.

        `once` hooks are marked before they run. Otherwise, timing would determine which of several concurrent events
        gets such a hook.
        """
        matched = self.matching(occasion)
        self.conversation.hooks_done |= {hook.name for hook in matched if hook.once}
        return matched

    def release(self, hooks: Sequence[Hook]) -> None:
        """Allow claimed `once` hooks that have not run to be claimed again."""
        self.conversation.hooks_done -= {hook.name for hook in hooks if hook.once}

    async def fire(self, occasion: Occasion, here: Place | None) -> HookRuns:
        """Claim and run the hooks that match an event."""
        return await self.fire_claimed(self.claim(occasion), occasion, here)

    async def fire_claimed(
        self, hooks: Sequence[Hook], occasion: Occasion, here: Place | None
    ) -> HookRuns:
        """Run claimed hooks for an event."""
        if not hooks:
            return Verdict(), ()
        verdict, events, _ = await fire(self.world, hooks, occasion, here, frozenset())
        self.count_usage(verdict.usage)
        return verdict, events


def turn_occasion(
    event: HookEvent, turn: int, name: str | None, facts: Mapping[str, Any], **tool_fields: Any
) -> Occasion:
    """Return the occasion of an event in a turn.

    Args:
        event: the event.
        turn: the turn.
        name: distinguishes the event from others of its kind in the turn; None if there can be
            only one.
        facts: the facts about the event that hooks get.
        tool_fields: the fields `tool`, `subject` and `aliases` of `Occasion`, if conditions should
            match them.
    """
    key = f"{turn}:{event}" + (f":{name}" if name is not None else "")
    return Occasion(event=event, turn=turn, key=key, facts=facts, **tool_fields)


def apply_hook_decision(
    decision: Decision, hook_behavior: Behavior | None, tool: str, mode: Mode
) -> Decision:
    """Combine the decision of the rules on a call with the decision of the hooks that run before the call.

    Hooks may require an approval. They may also allow a call that needs an approval, unless a rule requires that
    approval. If hooks and the mode require an approval, it counts as required by a hook, so that a classifier cannot
    give it. A call that the rules, the safety checks or the mode deny stays denied. In the mode `dontAsk` no approval
    is requested, so a call for which a hook requires an approval is denied.

    Args:
        decision: the decision of the rules.
        hook_behavior: the decision of the hooks; None if they have not decided.
        tool: the name of the tool.
        mode: the permission mode.
    """
    is_asked_by_mode = decision.behavior == "ask" and decision.rule is None
    if hook_behavior == "ask" and (decision.behavior == "allow" or is_asked_by_mode):
        if mode == "dontAsk":
            return denied_by_hook(
                tool, "It needs a person's approval, and nobody is available to approve it."
            )
        return _hook_decision("ask", f"A hook requires approval for this call of {tool}.")
    if hook_behavior == "allow" and is_asked_by_mode:
        return _hook_decision("allow", f"A hook allows this call of {tool}.")
    return decision


def denied_by_hook(tool: str, reason: str) -> Decision:
    """Return the decision for a hook's veto."""
    explanation = f" Its reason: {reason}" if reason else ""
    return _hook_decision("deny", f"A hook blocks this call of {tool}.{explanation}")


def approval_decision(pending: Decision, verdict: Verdict, tool: str) -> Decision | None:
    """Return the hooks' decision on an approval request, or None if a person must decide.

    If a rule requires the approval, hooks can deny the call, but not allow it.
    """
    if verdict.blocked or verdict.decision == "deny":
        return denied_by_hook(tool, verdict.reason)
    if verdict.decision == "allow" and pending.rule is None:
        return _hook_decision("allow", f"A hook allows this call of {tool}.")
    return None


def objection(tool: str, reason: str) -> str:
    """Return the text for the model if a hook objects to a tool result."""
    return f"A hook objects to the result of {tool}: {reason or 'no reason given'}"


def _hook_decision(behavior: Behavior, reason: str) -> Decision:
    return Decision(behavior, "hook", None, None, reason, "hook")
