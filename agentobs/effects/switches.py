"""Switches: which effects are observed, by name.

An observer is imported when it is created, so that sessions without effects do not load it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping

from agentobs.effects.observation import Observation, Observer, Scope
from agentobs.errors import UsageError


def _of_module(module: str, name: str) -> Callable[[], Observer]:
    def create() -> Observer:
        observer: Observer = getattr(importlib.import_module(f"agentobs.effects.{module}"), name)()
        return observer

    return create


ALL = "all"
"""The name that switches on every effect."""
OBSERVERS: Mapping[str, Callable[[], Observer]] = {
    "commands": _of_module("commands.command_observer", "CommandObserver"),
    "mcp": _of_module("mcp.mcp_observer", "McpObserver"),
    "files": _of_module("workspaces.observer", "FileObserver"),
}
"""Creates the observer of each effect, by the name of its switch."""


def effect_names(text: str) -> tuple[str, ...]:
    """Return the effects in a list that is separated by commas, such as `commands,mcp`.

    Raises:
        UsageError: a name is not an effect.
    """
    return checked_effects(each.strip() for each in text.split(",") if each.strip())


def checked_effects(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of effects, each once, with `all` replaced by all effects.

    Raises:
        UsageError: a name is not an effect.
    """
    listed = [names] if isinstance(names, str) else list(names)
    unknown = [each for each in listed if each != ALL and each not in OBSERVERS]
    if unknown:
        raise UsageError(
            f"{str(unknown[0])[:80]!r} is not an effect that can be observed",
            where="effects",
            todo=f"Use one or more of {', '.join(OBSERVERS)}, or {ALL}",
        )
    return tuple(dict.fromkeys(OBSERVERS if ALL in listed else listed))


def observation(names: Iterable[str]) -> Observation:
    """Return an observation of some effects, which has not started."""
    return Observation([OBSERVERS[each]() for each in names])


def observed(names: Iterable[str], scope: Scope) -> Observation:
    """Start observing effects of this process; an effect that cannot be observed is reported, not raised."""
    started = observation(names)
    started.start(scope, is_strict=False)
    return started


__all__ = ["ALL", "OBSERVERS", "checked_effects", "effect_names", "observation", "observed"]
