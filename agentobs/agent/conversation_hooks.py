"""Hooking: firing the hooks of a conversation, each `once` hook once, and counting what they used."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentobs.agent.events import HookRan
from agentobs.agent.hooks import Hook, HookEvent, Occasion, Verdict, fire, matching
from agentobs.agent.permissions import Behaviour, Decision, Mode
from agentobs.agent.state import Conversation
from agentobs.records.canonical_json import Json
from agentobs.records.exchanges import Place
from agentobs.world import World

Fired = tuple[Verdict, tuple[HookRan, ...]]
"""What hooks say together, and what is told of each."""


@dataclass(frozen=True, slots=True)
class Hooking:
    """The hooks of a conversation, and how they are fired."""

    world: World
    hooks: tuple[Hook, ...]
    talk: Conversation
    """Where it is kept which `once` hooks have run."""
    count: Callable[[Sequence[Json]], None]
    """Counts what requests used that hooks made."""

    def matching(self, occasion: Occasion) -> tuple[Hook, ...]:
        """Return the hooks that an occasion fires."""
        return matching(self.hooks, occasion, self.talk.hooks_done) if self.hooks else ()

    def claimed(self, occasion: Occasion) -> tuple[Hook, ...]:
        """Return the hooks that an occasion fires, of which no other occasion will fire the `once` ones.

        For occasions that come about beside each other: which of them is first must not depend on the clock.
        """
        found = self.matching(occasion)
        self.talk.hooks_done |= {hook.name for hook in found if hook.once}
        return found

    def release(self, hooks: Sequence[Hook]) -> None:
        """Give `once` hooks back that were claimed and have not run."""
        self.talk.hooks_done -= {hook.name for hook in hooks if hook.once}

    async def fire(self, occasion: Occasion, here: Place | None) -> Fired:
        """Fire the hooks of an occasion."""
        return await self.fire_these(self.claimed(occasion), occasion, here)

    async def fire_these(
        self, hooks: Sequence[Hook], occasion: Occasion, here: Place | None
    ) -> Fired:
        """Fire these hooks for an occasion."""
        if not hooks:
            return Verdict(), ()
        verdict, told, _ = await fire(self.world, hooks, occasion, here, frozenset())
        self.count(verdict.usage)
        return verdict, told


def occasion(
    event: HookEvent, turn: int, name: str | None, facts: Mapping[str, Any], **of_tool: Any
) -> Occasion:
    """Return an occasion in a turn; `name` tells it from others of its event there.

    `of_tool` are the tool, its subject and its former names, where conditions are to look at them.
    """
    key = f"{turn}:{event}" + (f":{name}" if name is not None else "")
    return Occasion(event=event, turn=turn, key=key, facts=facts, **of_tool)


def wished(decision: Decision, wish: Behaviour | None, tool: str, mode: Mode) -> Decision:
    """Return a decision as hooks want it: they may ask for consent, and give it where no rule asks for it.

    What rules, safety checks or the mode deny stays denied, and what a rule wants a person to be asked about is
    asked. In the mode `dontAsk` nobody is asked, so what a hook wants to be asked about is denied.
    """
    if wish == "ask" and decision.behaviour == "allow":
        if mode == "dontAsk":
            return denied_by_hook(tool, "It needs a person's consent, and nobody is asked.")
        return _by_hook("ask", f"A hook asks for consent to this call of {tool}.")
    if wish == "allow" and decision.behaviour == "ask" and decision.rule is None:
        return _by_hook("allow", f"A hook lets this call of {tool} run.")
    return decision


def denied_by_hook(tool: str, reason: str) -> Decision:
    """Return the decision that a hook's veto is."""
    said = f" It says: {reason}" if reason else ""
    return _by_hook("deny", f"A hook blocks this call of {tool}.{said}")


def answered_by_hook(asked: Decision, verdict: Verdict, tool: str) -> Decision | None:
    """Return the decision of hooks that were asked for consent; None where a person has to be asked all the same.

    Where a rule wants a person to be asked, hooks can deny, and not allow.
    """
    if verdict.blocked or verdict.decision == "deny":
        return denied_by_hook(tool, verdict.reason)
    if verdict.decision == "allow" and asked.rule is None:
        return _by_hook("allow", f"A hook lets this call of {tool} run.")
    return None


def objection(tool: str, reason: str) -> str:
    """Return what the model is told where a hook objects to a result."""
    return f"A hook objects to the result of {tool}: {reason or 'it gives no reason'}"


def _by_hook(behaviour: Behaviour, reason: str) -> Decision:
    return Decision(behaviour, "hook", None, None, reason, "hook")
