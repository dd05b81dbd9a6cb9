"""Run the hooks of a conversation: each `once` hook once, with their usage counted."""

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

Fired = tuple[Verdict, tuple[HookRan, ...]]
"""The combined verdict of the hooks, and one event per hook."""


@dataclass(frozen=True, slots=True)
class ConversationHooks:
    """The hooks of a conversation, and methods to run them."""

    world: World
    hooks: tuple[Hook, ...]
    talk: Conversation
    """Records which `once` hooks have run."""
    count: Callable[[Sequence[Json]], None]
    """Counts the usage of model requests made inside hooks."""

    def matching(self, occasion: Occasion) -> tuple[Hook, ...]:
        """Return the hooks that match an event."""
        return matching(self.hooks, occasion, self.talk.hooks_done) if self.hooks else ()

    def claimed(self, occasion: Occasion) -> tuple[Hook, ...]:
        """Return the hooks that match an event, and reserve the `once` hooks among them.

        For concurrent events: which of them comes first must not depend on the clock.
        """
        found = self.matching(occasion)
        self.talk.hooks_done |= {hook.name for hook in found if hook.once}
        return found

    def release(self, hooks: Sequence[Hook]) -> None:
        """Release reserved `once` hooks that have not run."""
        self.talk.hooks_done -= {hook.name for hook in hooks if hook.once}

    async def fire(self, occasion: Occasion, here: Place | None) -> Fired:
        """Run the hooks that match an event."""
        return await self.fire_these(self.claimed(occasion), occasion, here)

    async def fire_these(
        self, hooks: Sequence[Hook], occasion: Occasion, here: Place | None
    ) -> Fired:
        """Run the given hooks for an event."""
        if not hooks:
            return Verdict(), ()
        verdict, events, _ = await fire(self.world, hooks, occasion, here, frozenset())
        self.count(verdict.usage)
        return verdict, events


def occasion(
    event: HookEvent, turn: int, name: str | None, facts: Mapping[str, Any], **of_tool: Any
) -> Occasion:
    """Return the hook event of a turn; `name` distinguishes it from others of its kind in the turn.

    `of_tool` holds the tool, its subject and its aliases, if conditions should match them.
    """
    key = f"{turn}:{event}" + (f":{name}" if name is not None else "")
    return Occasion(event=event, turn=turn, key=key, facts=facts, **of_tool)


def wished(decision: Decision, wish: Behavior | None, tool: str, mode: Mode) -> Decision:
    """Apply the hooks' decision: hooks may require approval, and grant it if no rule requires it.

    A call that rules, safety checks or the mode deny stays denied, and a rule that requires a person stays in force. In
    the mode `dontAsk` no approval is requested, so a call for which a hook requires approval is denied.
    """
    if wish == "ask" and decision.behavior == "allow":
        if mode == "dontAsk":
            return denied_by_hook(
                tool, "It needs a person's consent, and nobody is available to give it."
            )
        return _by_hook("ask", f"A hook asks for consent to this call of {tool}.")
    if wish == "allow" and decision.behavior == "ask" and decision.rule is None:
        return _by_hook("allow", f"A hook lets this call of {tool} run.")
    return decision


def denied_by_hook(tool: str, reason: str) -> Decision:
    """Return the decision for a hook's veto."""
    explanation = f" It says: {reason}" if reason else ""
    return _by_hook("deny", f"A hook blocks this call of {tool}.{explanation}")


def answered_by_hook(pending: Decision, verdict: Verdict, tool: str) -> Decision | None:
    """Return the hooks' decision on an approval request; None if a person must still be asked.

    If a rule requires a person, hooks can deny but not allow.
    """
    if verdict.blocked or verdict.decision == "deny":
        return denied_by_hook(tool, verdict.reason)
    if verdict.decision == "allow" and pending.rule is None:
        return _by_hook("allow", f"A hook lets this call of {tool} run.")
    return None


def objection(tool: str, reason: str) -> str:
    """Return the message for the model if a hook objects to a result."""
    return f"A hook objects to the result of {tool}: {reason or 'it gives no reason'}"


def _by_hook(behavior: Behavior, reason: str) -> Decision:
    return Decision(behavior, "hook", None, None, reason, "hook")
