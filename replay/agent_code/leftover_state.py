"""Leftovers: state that an earlier run in this process has left in the agent's modules.

A cache, a module-level list or a shared client can make the second agent run differ from the first.
The modules are measured when they are first seen (lengths, sizes of caches, plain values) and again when a replay
begins; a divergence of that replay names what had changed in between.
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
from replay.fixture.format import Fixture

NAMED_MAX = 6
"""The maximum number of changed values that a hint names. Our choice."""
VALUES_MAX = 2000
"""The maximum number of values that are measured per module. Our choice."""
TODO = (
    "run each replay in a process of its own, as pytest does without --replay-no-fork, or reset it"
)
_CONTAINERS = (list, dict, set, deque, bytearray)
_PLAIN = (type(None), bool, int, float, str, bytes)
_TEST_MODULE = re.compile(r"(?:.*\.)?(?:test_\w+|\w+_test|conftest)")


@dataclass(frozen=True, slots=True)
class Measure:
    """The measure of one value of a module."""

    kind: str
    """`lru_cache`, the type of a container, `value` or `object`."""
    size: Any
    """Entries, items, the value itself, or the identity of an object."""

    def change(self, now: Measure) -> str:
        """Describe how a value differs from this measure, without its content; empty if it does not differ."""
        if self == now:
            return ""
        if now.kind == "lru_cache":
            return f"lru_cache, {now.size} entries"
        if now.kind == self.kind and now.kind not in ("value", "object"):
            return f"{now.kind}, {self.size} -> {now.size} items"
        return "set to another value"


class State:
    """What was measured and replayed in this process."""

    def __init__(self) -> None:
        self.first: dict[str, tuple[int, dict[str, Measure]]] = {}
        """The first measures of each module of the agent, with the identity of the module."""
        self.replayed: dict[str, str] = {}
        """The fixtures that were replayed in this process, each with the last test that replayed it."""
        self.is_isolated = False
        """Whether this process runs one test, so that nothing has to be measured."""
        self.seen = 0
        """The number of imported modules at the last measurement."""
        self.known: dict[str, bool] = {}
        """Whether a file is the agent's."""


NAMED_STATE = "left state that can cause this"
"""What a hint contains if it names the state that has changed."""


def rely_on_isolation() -> None:
    """Measure nothing: this process runs one test."""
    process.part(State).is_isolated = True


def observe() -> None:
    """Measure the modules of the agent that have not been measured yet."""
    state = process.part(State)
    if state.is_isolated or len(sys.modules) == state.seen:
        return
    state.seen = len(sys.modules)
    for name, module in _modules():
        if state.first.get(name, (0,))[0] != id(module):
            # The content of a cache comes from a run, even if the cache is seen for the first time.
            found = dict(_measures(module))
            empty = {
                key: Measure(each.kind, 0)
                for key, each in found.items()
                if each.kind == "lru_cache"
            }
            state.first[name] = id(module), {**found, **empty}


def begin(fixture: Fixture) -> str:
    """Note that a replay begins; return a hint about state that an earlier run has left, or an empty string."""
    state = process.part(State)
    entry = fixture.header.get("entry")
    where = process_history.ran_in(entry) if isinstance(entry, str) else None
    key = str(fixture.path.resolve())
    earlier = state.replayed.get(key, where)
    own = str(entry or "").partition(":")[0]
    changed = (
        []
        if state.is_isolated
        else sorted(_changed(own), key=lambda each: not each.startswith(own))
    )
    observe()
    state.replayed[key] = current_test()
    return "" if earlier is None and not changed else _hint(earlier, changed)


def forget() -> None:
    """Forget all earlier runs and measures."""
    state = process.part(State)
    state.seen = 0
    state.first.clear()
    state.replayed.clear()
    process_history.forget()


def current_test() -> str:
    """Return the id of the test that pytest runs, or an empty string."""
    return world.environment().get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]


def _hint(earlier: str | None, changed: list[str]) -> str:
    ran = (
        "the agent ran before in this process"
        if earlier is not None
        else "code ran before this replay"
    )
    where = f" (in {earlier})" if earlier else ""
    if not changed:
        return (
            f"{ran}{where}; state that it left, such as a cache or a module-level list, "
            f"can cause this: {TODO}"
        )
    more = f" and {len(changed) - NAMED_MAX} more" if len(changed) > NAMED_MAX else ""
    named = ", ".join(changed[:NAMED_MAX])
    return f"{ran}{where} and {NAMED_STATE}: {named}{more}; {TODO}"


def _changed(own: str) -> Iterator[str]:
    """Yield the values that differ from their first measure, each by its module and name."""
    state = process.part(State)
    seen: set[int] = set()
    for name, module in _modules():
        known, before = state.first.get(name, (0, {}))
        if known != id(module) or (name != own and _TEST_MODULE.fullmatch(name)):
            continue
        for key, now in _measures(module, seen):
            change = before[key].change(now) if key in before else ""
            if change:
                yield f"{name}.{key} ({change})"


def _modules() -> list[tuple[str, ModuleType]]:
    """Return the modules of the agent, not those of this package or of libraries."""
    found = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if isinstance(module, ModuleType) and isinstance(file, str) and _is_agents(file):
            found.append((name, module))
    return found


def _is_agents(file: str) -> bool:
    state = process.part(State)
    if file not in state.known:
        state.known[file] = is_agents(str(Path(file).resolve()))
    return state.known[file]


def _measures(module: ModuleType, seen: set[int] | None = None) -> Iterator[tuple[str, Measure]]:
    """Yield the values of a module that can hold state, with their names."""
    done = set() if seen is None else seen
    for name, value in itertools.islice(list(vars(module).items()), VALUES_MAX):
        if name.startswith("__") or isinstance(value, ModuleType):
            continue
        is_own = getattr(value, "__module__", None) == module.__name__
        if isinstance(value, type):
            yield from _within(name, value, done) if is_own else ()
            continue
        if not isinstance(value, _PLAIN):
            if id(value) in done:
                continue
            done.add(id(value))
        measure = _measure(value)
        if measure is not None:
            yield name, measure
        if measure is not None and measure.kind == "object" and is_own:
            yield from _within(name, value, done)


def _within(name: str, value: Any, seen: set[int]) -> Iterator[tuple[str, Measure]]:
    """Yield the values of a class or of an object that can hold state."""
    for inner, held in list(getattr(value, "__dict__", {}).items()):
        if inner.startswith("__") or id(held) in seen:
            continue
        measure = _measure(held)
        if measure is not None and measure.kind != "object":
            yield f"{name}.{inner}", measure


def _measure(value: Any) -> Measure | None:
    """Return the measure of a value; None for code."""
    if callable(value):
        info = getattr(value, "cache_info", None)
        return (
            Measure("lru_cache", info().currsize) if info is not None and _is_cache(value) else None
        )
    if isinstance(value, _CONTAINERS):
        return Measure(type(value).__name__, len(value))
    if isinstance(value, _PLAIN):
        return Measure("value", value)
    if isinstance(value, itertools.count):
        return Measure("value", repr(value))
    return Measure("object", id(value))


def _is_cache(value: Any) -> bool:
    return type(value).__name__ == "_lru_cache_wrapper"
