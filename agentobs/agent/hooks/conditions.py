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
    candidates = [
        hook
        for hook in hooks
        if hook.event == occasion.event and not (hook.once and hook.name in done)
    ]
    if all(hook.when is None for hook in candidates):
        return tuple(candidates)
    view = _call_view(occasion)
    return tuple(hook for hook in candidates if _is_condition_met(hook, view))


def _is_condition_met(hook: Hook, view: CallView | None) -> bool:
    """Return whether a hook's condition is met.

    A doubtful match counts as met, because a hook that guards calls must see every call that may match.
    """
    if hook.when is None or view is None:
        return True
    return forbids(condition(hook.when), view) != "no"


def _call_view(occasion: Occasion) -> CallView | None:
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
