"""The shared state of a process is in one object: few module globals are mutable, and a replay replaces the object."""

from __future__ import annotations

import ast
import threading
import uuid
from collections.abc import Iterator
from functools import cache

import pytest

from agentobs import runtime
from agentobs.determinism.patches import patched
from agentobs.records.exchanges import Answer, Place, Question
from tests.source_code import modules, statements, tree_of

pytestmark = pytest.mark.xdist_group("source code")

GLOBALS_MAX = 0
MUTABLE = {
    "agentobs._importing": "the imports in progress; the runtime may not be imported yet",
    "agentobs.errors._reported": "the warnings that were reported; this module may not import the runtime",
    "agentobs.runtime.process": "the object that contains all other state",
    "agentobs.sink.sink": "receives the records of every module",
    "agentobs.tracing.places.open_spans": "read for each span and request; removing a span ends it atomically",
    "agentobs.world._clock": "the clock of the machine, which replays do not replace; the runtime imports it",
    "replay.virtual_time.time_patches._ORIGINALS": "the original functions of `time`, which the patches replace",
}
"""The module globals that change while the program runs, each with the reason."""
MUTABLE_MAX = 7
CONSTANT = {
    "agentobs.recording.vault.stream_secrets._PLAIN_REDACTOR": "has no key and no rules; only counts failures",
    "agentobs.redaction._PLAIN": "has no key and no rules; only counts failures",
    "exporters.otlp.backfill._NOT_SENT": "the position of a session that was never sent; it never changes",
}
"""Instances of mutable classes that serve as constants, each with the reason."""
CHANGING = {
    *("add", "append", "appendleft", "clear", "discard", "extend", "insert", "move_to_end", "pop"),
    *("popitem", "popleft", "remove", "setdefault", "update"),
}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@cache
def assigned(module: str) -> set[str]:
    """Return the names that a module assigns at its top level."""
    found = set()
    for node in tree_of(module).body:
        targets: list[ast.expr] = list(node.targets) if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign):
            targets = [node.target]
        names = (n for t in targets for n in ast.walk(t) if isinstance(n, ast.Name))
        found |= {n.id for n in names if isinstance(n.ctx, ast.Store)}
    return found


@cache
def classes(module: str) -> dict[str, ast.ClassDef]:
    return {node.name: node for node in tree_of(module).body if isinstance(node, ast.ClassDef)}


@cache
def origin_of(module: str, name: str) -> str | None:
    """Return the full name of the module global or class to which a name in a module refers, or None."""
    if name in assigned(module) | classes(module).keys():
        return f"{module}.{name}"
    for node in tree_of(module).body:
        if isinstance(node, ast.ImportFrom) and node.module in modules():
            for alias in node.names:
                if name == (alias.asname or alias.name):
                    return origin_of(str(node.module), alias.name)
    return None


def locals_of(function: ast.AST) -> set[str]:
    """Return the names that are bound in a function."""
    nodes = list(ast.walk(function))
    shared = {name for n in nodes if isinstance(n, ast.Global) for name in n.names}
    bound = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return (bound | {n.arg for n in nodes if isinstance(n, ast.arg)}) - shared


def changed_names(function: ast.AST) -> Iterator[str]:
    """Yield the names of objects that a function changes, and the globals that it binds."""
    for node in ast.walk(function):
        target: ast.expr | None = None
        if isinstance(node, ast.Global):
            yield from node.names
        elif isinstance(node, ast.Subscript | ast.Attribute):
            target = node.value if isinstance(node.ctx, ast.Store | ast.Del) else None
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            target = node.func.value if node.func.attr in CHANGING else None
        if isinstance(target, ast.Name):
            yield target.id


def mutable_globals() -> set[str]:
    found: set[str] = set()
    for module in modules():
        for function in ast.walk(tree_of(module)):
            if isinstance(function, FUNCTIONS):
                names = set(changed_names(function)) - locals_of(function)
                found |= {home for name in names if (home := origin_of(module, name))}
        found |= {f"{module}.{name}" for name in instances(module)}
    return found


def instances(module: str) -> Iterator[str]:
    """Yield the globals of a module that are instances of mutable classes of agentobs."""
    for node in tree_of(module).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Call):
            made = node.value.func
            home = origin_of(module, made.id) if isinstance(made, ast.Name) else None
            where, _, name = (home or "").rpartition(".")
            if where in modules() and name in classes(where) and is_mutable(classes(where)[name]):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                yield from (target.id for target in targets if isinstance(target, ast.Name))


def is_mutable(kind: ast.ClassDef) -> bool:
    """Return whether methods of a class other than its constructor assign attributes."""
    methods = (each for each in kind.body if isinstance(each, ast.FunctionDef))
    return any(
        isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
        for method in methods
        if method.name != "__init__"
        for node in ast.walk(method)
    )


def test_few_functions_bind_module_globals() -> None:
    """At most GLOBALS_MAX `global` statements exist."""
    found = [
        f"{module}:{node.lineno}"
        for module in modules()
        for node, _ in statements(module)
        if isinstance(node, ast.Global)
    ]
    assert len(found) <= GLOBALS_MAX, found


@pytest.mark.slow
def test_few_module_globals_change() -> None:
    """Exactly the listed module globals are mutable, and their number is limited."""
    assert mutable_globals() == MUTABLE.keys() | CONSTANT.keys()
    assert len(MUTABLE) <= MUTABLE_MAX


class Kept:
    """The state of a test."""


def test_runtimes_and_processes_have_separate_state() -> None:
    """The state of a runtime is kept until the runtime is replaced; the state of a process is separate."""
    shared, outer = runtime.process.state(Kept), runtime.current().state(Kept)
    with runtime.replaced() as inner:
        assert runtime.current() is inner
        assert inner.state(Kept) is inner.state(Kept) is not outer
        assert runtime.process.state(Kept) is shared
    assert runtime.current().state(Kept) is outer
    assert runtime.Process().state(Kept) is not shared


def test_runtimes_nest_and_restore_the_previous_one() -> None:
    """A replaced runtime applies to all threads, and the previous runtime is restored at the end."""

    def answered(status: int) -> runtime.Answerer:
        return lambda question, place: Answer(status, {}, (), "complete")

    def status() -> int | None:
        answerer = runtime.current().answerer
        request = Question("POST", "/v1/messages", {}, b"")
        return None if answerer is None else answerer(request, Place("s")).status

    seen: list[int | None] = []
    with runtime.replaced(answerer=answered(200)):
        with runtime.replaced(answerer=answered(201)):
            thread = threading.Thread(target=lambda: seen.append(status()))
            thread.start()
            thread.join()
        seen.append(status())
    assert [*seen, status()] == [201, 200, None]


def test_the_active_runtime_observes_reads() -> None:
    """Reads are passed to the active runtime's observer, but not after that runtime has ended."""
    seen: list[str] = []
    with runtime.replaced(read_observer=lambda name, value, frame: seen.append(name)):
        with patched(["uuid"]), runtime.replaced(answerer=None):
            uuid.uuid4()
        observed = len(seen)
    with patched(["uuid"]):
        uuid.uuid4()
    assert (observed, len(seen)) == (1, 1)
