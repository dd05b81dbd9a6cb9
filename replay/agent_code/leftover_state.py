"""Leftover state: changes that an earlier run in this process has left in the agent's modules.

A cache, a module-level list or a shared client can make the second run of an agent differ from the first. The modules
are measured when they are first seen (lengths, sizes of caches, plain values), and again when a replay starts. If the
replay diverges, the report names the values that had changed before the replay.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from agentobs import world
from agentobs.determinism import process_history
from agentobs.runtime import process
from replay.agent_code.call_sites import is_agents
from replay.agent_code.imported_modules import ImportedModules
from replay.fixture.format import Fixture

NAMED_MAX = 6
"""The maximum number of changed values that a hint names. Our choice."""
VALUES_MAX = 2000
"""The maximum number of values that are measured per module. Our choice."""
TODO = (
    "reset this state between replays, or run each replay in its own process (pytest does this unless --replay-no-fork "
    "is set)"
)
_CONTAINERS = (list, dict, set, deque, bytearray)
_PLAIN = (type(None), bool, int, float, str, bytes)
_TEST_MODULE = re.compile(r"(?:.*\.)?(?:test_\w+|\w+_test|conftest)")


@dataclass(frozen=True, slots=True)
class Measure:
    """The measure of one value of a module."""

    kind: str
    """The kind of the value: `lru_cache`, the type of a container, `value` or `object`."""
    size: Any
    """The number of entries or items, the value itself, or the identity of an object."""

    def change(self, now: Measure) -> str:
        """Describe how a value has changed since this measure, without its content; empty if it has not changed."""
        if self == now:
            return ""
        if now.kind == "lru_cache":
            return f"lru_cache, {now.size} entries"
        if now.kind == self.kind and now.kind not in ("value", "object"):
            return f"{now.kind}, {self.size} -> {now.size} items"
        return "set to another value"


class State:
    """The measures of modules, and the replays of this process."""

    def __init__(self) -> None:
        self.first: dict[str, tuple[int, dict[str, Measure]]] = {}
        """The identity of each module of the agent, and the initial measures of its values, by module name."""
        self.replayed: dict[str, str] = {}
        """The last test that replayed each fixture in this process, by the path of the fixture."""
        self.is_isolated = False
        """Whether this process runs only one test, so that nothing has to be measured."""
        self.seen = 0
        """The number of imported modules at the last measurement."""
        self.known: dict[str, bool] = {}
        """Whether a file belongs to the agent, by its path."""
        self.imported = ImportedModules()
        """All modules at the last examination."""
        self.agents: list[int] = []
        """The positions of the modules that belonged to the agent."""


NAMED_STATE = "left state that can cause this"
"""The words that identify a hint as one that names the changed state."""


def rely_on_isolation() -> None:
    """Measure nothing, because this process runs only one test."""
    process.state(State).is_isolated = True


def observe() -> None:
    """Measure the modules of the agent that have not been measured yet."""
    state = process.state(State)
    if state.is_isolated or len(sys.modules) == state.seen:
        return
    state.seen = len(sys.modules)
    for name, module in _modules():
        if state.first.get(name, (0,))[0] != id(module):
            # A cache that is not empty was filled by an earlier run, even if it is seen for the first time.
            found = dict(_measures(module))
            empty = {
                key: Measure(each.kind, 0)
                for key, each in found.items()
                if each.kind == "lru_cache"
            }
            state.first[name] = id(module), {**found, **empty}


def begin(fixture: Fixture) -> str:
    """Record the start of a replay; return a hint at state that an earlier run has left, or an empty string."""
    state = process.state(State)
    entry = fixture.header.get("entry")
    where = process_history.first_test_of(entry) if isinstance(entry, str) else None
    key = str(fixture.path.resolve())
    earlier = state.replayed.get(key, where)
    entry_module = str(entry or "").partition(":")[0]
    changed = (
        []
        if state.is_isolated
        else sorted(_changed(entry_module), key=lambda each: not each.startswith(entry_module))
    )
    observe()
    state.replayed[key] = current_test()
    return "" if earlier is None and not changed else _hint(earlier, changed)


def forget() -> None:
    """Forget all earlier runs and measurements."""
    state = process.state(State)
    state.seen = 0
    state.first.clear()
    state.replayed.clear()
    process_history.forget()


def current_test() -> str:
    """Return the ID of the test that pytest is running, or an empty string."""
    return world.environment().get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]


def _hint(earlier: str | None, changed: list[str]) -> str:
    ran = (
        "the agent already ran in this process"
        if earlier is not None
        else "code ran before this replay"
    )
    where = f" (in {earlier})" if earlier else ""
    if not changed:
        return (
            f"{ran}{where}; leftover state, such as a cache or a module-level list, "
            f"can cause this: {TODO}"
        )
    more = f" and {len(changed) - NAMED_MAX} more" if len(changed) > NAMED_MAX else ""
    named = ", ".join(changed[:NAMED_MAX])
    return f"{ran}{where} and {NAMED_STATE}: {named}{more}; {TODO}"


def _changed(entry_module: str) -> Iterator[str]:
    """Yield the qualified names of the values that differ from their first measure, with the change."""
    state = process.state(State)
    seen: set[int] = set()
    for name, module in _modules():
        known, before = state.first.get(name, (0, {}))
        if known != id(module) or (name != entry_module and _TEST_MODULE.fullmatch(name)):
            continue
        for key, now in _measures(module, seen):
            change = before[key].change(now) if key in before else ""
            if change:
                yield f"{name}.{key} ({change})"


def examine_modules() -> None:
    """Remember which imported modules do not belong to the agent, so that forked processes need not examine them."""
    _modules()


def _modules() -> list[tuple[str, ModuleType]]:
    """Return the modules of the agent, without modules of agentobs and libraries."""
    state = process.state(State)
    names, modules, same = state.imported.look()
    state.agents = [index for index in state.agents if index < same]
    for index, module in enumerate(modules[same:], same):
        if _is_agents_module(module, state.known):
            state.agents.append(index)
    return [(names[index], modules[index]) for index in state.agents]


def _is_agents_module(module: ModuleType, known: dict[str, bool]) -> bool:
    """Return whether a module belongs to the agent.

    Args:
        module: the module.
        known: the answers for all files so far, to which this one is added.
    """
    file = getattr(module, "__file__", None)
    if not isinstance(file, str):
        return False
    if file not in known:
        # Symbolic links are resolved only for the few files that are not in the folder of a library anyway.
        known[file] = is_agents(file) and is_agents(str(Path(file).resolve()))
    return known[file]


def _measures(module: ModuleType, seen: set[int] | None = None) -> Iterator[tuple[str, Measure]]:
    """Yield the name and the measure of each value of a module that can hold state."""
    measured = set() if seen is None else seen
    for name, value in itertools.islice(list(vars(module).items()), VALUES_MAX):
        if name.startswith("__") or isinstance(value, ModuleType):
            continue
        is_defined_here = getattr(value, "__module__", None) == module.__name__
        if isinstance(value, type):
            yield from _within(name, value, measured) if is_defined_here else ()
            continue
        if not isinstance(value, _PLAIN):
            if id(value) in measured:
                continue
            measured.add(id(value))
        measure = _measure(value)
        if measure is not None:
            yield name, measure
        if measure is not None and measure.kind == "object" and is_defined_here:
            yield from _within(name, value, measured)


def _within(name: str, value: Any, seen: set[int]) -> Iterator[tuple[str, Measure]]:
    """Yield the name and the measure of each attribute of a class or an object that can hold state."""
    for inner, held in list(getattr(value, "__dict__", {}).items()):
        if inner.startswith("__") or id(held) in seen:
            continue
        measure = _measure(held)
        if measure is not None and measure.kind != "object":
            yield f"{name}.{inner}", measure


def _measure(value: Any) -> Measure | None:
    """Return the measure of a value; None if the value is code."""
    if callable(value):
        return Measure("lru_cache", value.cache_info().currsize) if _is_cache(value) else None
    if isinstance(value, _CONTAINERS):
        return Measure(type(value).__name__, len(value))
    if isinstance(value, _PLAIN):
        return Measure("value", value)
    if isinstance(value, itertools.count):
        return Measure("value", repr(value))
    return Measure("object", id(value))


def _is_cache(value: Any) -> bool:
    return type(value).__name__ == "_lru_cache_wrapper"
