"""Select the hooks that match an event, before any of them starts."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from agentobs.agent.hooks.declarations import Hook, Occasion, condition
from agentobs.agent.permissions import Call
from agentobs.agent.permissions.rule_matcher import CallView, forbids


def matching(
    hooks: Iterable[Hook], occasion: Occasion, done: Collection[str] = ()
) -> tuple[Hook, ...]:
    """Return the hooks that match an event, in table order.

    Args:
        hooks: the table.
        occasion: the event.
        done: the names of the `once` hooks that have already run.
    """
    about = [
        hook
        for hook in hooks
        if hook.event == occasion.event and not (hook.once and hook.name in done)
    ]
    if all(hook.when is None for hook in about):
        return tuple(about)
    sight = _sight(occasion)
    return tuple(hook for hook in about if _is_met(hook, sight))


def _is_met(hook: Hook, sight: CallView | None) -> bool:
    """Return whether a hook's condition is met. In doubt it is, because a hook that guards calls must see them."""
    if hook.when is None or sight is None:
        return True
    return forbids(condition(hook.when), sight) != "no"


def _sight(occasion: Occasion) -> CallView | None:
    if occasion.tool is None:
        return None
    return CallView.of(
        Call(
            tool_use_id="",
            tool=occasion.tool,
            tool_class=occasion.tool_class,
            subject=occasion.subject,
            aliases=occasion.aliases,
            paths=occasion.paths,
            hosts=occasion.hosts,
        )
    )
