"""Calling the recorded entry: the function with which the recorded agent was started.

A fixture may come from an untrusted source. So the entry must be a Python function that is defined in a file under the
current directory, or the function of the command `agentobs run`.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import os
import runpy
import sys
import sysconfig
from collections.abc import AsyncIterator, Callable, Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

from agentobs.determinism.annotations import classes_in
from agentobs.determinism.entry import SCRIPT, required_of
from agentobs.determinism.values import NotKept, declared_classes, from_json
from agentobs.errors import UsageError
from replay.agent_code.entry_obstacles import why_not_callable
from replay.agent_code.project import project
from replay.fixture.format import Fixture

RUN_ENTRY = "agentobs.cli.run:answer"
"""The function that `agentobs run` starts."""
WRAPPED = ("callback", "fn", "func", "body", "original_function")
"""The attributes in which wrappers store their function, in click, typer, Prefect, `functools.partial` and invoke."""
WRAPPERS_MAX = 10
"""The maximum number of nested wrappers that are unwrapped. Our choice."""
FOLDERS_MAX = 2_000
"""The maximum number of folders that are searched for a script. Our choice."""
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_NOT_SEARCHED = frozenset({*_INSTALLED, "node_modules", "__pycache__", "venv"})


def recorded_call(fixture: Fixture, changes: dict[str, Any]) -> functools.partial[Any]:
    """Return a call of the recorded entry with the recorded arguments.

    For a command of click or typer, the underlying function is called. A method is called on an instance that is
    constructed without arguments.

    Args:
        fixture: the fixture.
        changes: arguments that replace recorded arguments, by name.

    Raises:
        UsageError: the recording does not name an entry, or the entry cannot be imported, is not defined under the
            current directory, or cannot be called. The message names the reason and what to do.
    """
    if (problem := why_not_callable(fixture.header)) is not None:
        lines = "\n    ".join(problem.lines)
        raise UsageError(
            problem.reason,
            where=str(fixture.path),
            todo=f"Pass the function with --entry module:name --args JSON, or call it in the test:\n    {lines}\n",
        )
    entry, arguments = str(fixture.header["entry"]), fixture.header["arguments"]
    module, _, qualified = entry.partition(":")
    if qualified == SCRIPT:
        script = _spec(fixture, module)
        if not _is_agent(Path(str(script.origin))):
            raise _refused(
                fixture,
                f"the recorded entry {entry} is a script that does not use agentobs, so it is not run",
                "Pass the function that starts the agent: replay.run(my_agent, ...)",
            )
        return functools.partial(_run_script, script, list(arguments.get("argv", ())))
    function = _callable(fixture, entry)
    try:
        with declared_classes(classes_in(_innermost(function))):
            restored = {name: from_json(value) for name, value in arguments.items()}
    except NotKept as error:
        raise _refused(
            fixture,
            f"an argument of {entry} cannot be restored: {error}",
            "Annotate the parameter with its class, or register the class with agentobs.register_type",
        ) from error
    args, kwargs = _bound(function, {**restored, **changes})
    return functools.partial(function, *args, **kwargs)


def _callable(fixture: Fixture, entry: str) -> Callable[..., Any]:
    """Import an entry, and return the function to call."""
    module, _, qualified = entry.partition(":")
    if entry != RUN_ENTRY:
        _spec(fixture, module)
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:  # the agent's module may raise anything while it is imported
        reason = f"the module {module} of the recorded entry cannot be imported: {type(error).__name__}: {error}"
        raise _refused(fixture, reason, "Install its dependencies, or fix the module") from error
    parent: Any = None
    for part in qualified.split("."):
        parent, found = found, getattr(found, part, None)
        if found is None:
            raise _refused(
                fixture,
                f"the recorded entry {entry} does not exist: {module} has no {part}",
                "If the function was renamed, pass its new name with --entry module:name, or pass the function itself: "
                "replay.run(my_agent, ...)",
            )
    function: Callable[..., Any] = _unwrapped(_instance(fixture, entry, parent, found))
    code = getattr(_innermost(function), "__code__", None)
    if entry == RUN_ENTRY:
        return function
    if code is None:
        raise _refused(
            fixture,
            f"the recorded entry {entry} is a {type(found).__name__}, not a Python function",
            "Pass the underlying function: replay.run(my_agent, ...)",
        )
    if not _is_here(code.co_filename):
        raise _outside(fixture, entry, code.co_filename)
    return function


def _instance(fixture: Fixture, entry: str, parent: Any, found: Any) -> Any:
    """Return a method bound to a new instance of its class; return any other object unchanged."""
    name = entry.rpartition(".")[2]
    if not isinstance(parent, type) or not isinstance(
        inspect.getattr_static(parent, name, None), FunctionType
    ):
        return found
    if needs := required_of(parent):
        raise _refused(
            fixture,
            f"{entry} is a method of {parent.__name__}, whose constructor needs {', '.join(needs)}",
            f"Construct it in the test: replay.run({parent.__name__}(...).{name}, ...)",
        )
    return getattr(parent(), name)


def _unwrapped(found: Any) -> Any:
    """Return the function that a wrapper object runs, such as the callback of a click command."""
    for _ in range(WRAPPERS_MAX):
        if isinstance(found, FunctionType | MethodType) or hasattr(found, "__wrapped__"):
            return found
        inner = (getattr(found, name, None) for name in WRAPPED)
        function = next((each for each in inner if callable(each)), None)
        if function is None:
            break
        found = function
    return found


def _innermost(function: Any) -> Any:
    """Return the innermost Python function of a callable; for an instance, its `__call__`."""
    for _ in range(WRAPPERS_MAX):
        function = inspect.unwrap(function)
        if isinstance(function, functools.partial):
            function = function.func
        elif isinstance(function, FunctionType | MethodType | type):
            break
        else:
            function = getattr(type(function), "__call__", function)  # noqa: B004  # the attribute itself is needed
    return function


def _bound(
    function: Callable[..., Any], arguments: dict[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Split arguments into positional and keyword arguments.

    The values under the key `*` and the values of positional-only parameters are positional.
    """
    args = list(arguments.get("*", ()))
    named = {name: value for name, value in arguments.items() if name != "*"}
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return args, named
    by_position = [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY and p.name in named]
    return args or [named.pop(name) for name in by_position], named


def _run_script(spec: ModuleSpec, argv: list[str]) -> Any:
    """Run a script as `python script.py` does; return None."""
    previous = sys.argv
    sys.argv = [str(spec.origin), *argv]
    try:
        runpy.run_path(str(spec.origin), run_name="__main__")
    except SystemExit as error:
        if error.code not in (None, 0):
            raise
    finally:
        sys.argv = previous


def runs_recorded(call: functools.partial[Any] | None, fixture: Fixture) -> bool:
    """Return whether a call is a call of the recorded entry with the recorded arguments; true if the call is None."""
    if call is None:
        return True
    module, name = (getattr(call.func, key, None) for key in ("__module__", "__qualname__"))
    if f"{module}:{name}" != fixture.header.get("entry"):
        return False
    try:
        bound = inspect.signature(call.func).bind(*call.args, **call.keywords)
    except (TypeError, ValueError):
        return False
    passed = dict(bound.arguments)
    bound.apply_defaults()
    return fixture.header.get("arguments") in (passed, dict(bound.arguments))


def _spec(fixture: Fixture, module: str) -> ModuleSpec:
    """Return the import spec of a module of the agent, without importing the module.

    Raises:
        UsageError: there is no such module, or it is not under the current directory.
    """
    directory = str(project())
    if directory not in sys.path:
        sys.path.insert(0, directory)
    entry = str(fixture.header["entry"])
    package = module.partition(".")[0]
    found = _spec_of(package)
    if found is None and package == module and (folder := _folder_of(f"{module}.py")) is not None:
        sys.path.insert(0, str(folder))
        importlib.invalidate_caches()
        found = _spec_of(package)
    if found is None:
        raise _refused(
            fixture,
            f"the recorded entry {entry} is not in a file under {directory}: there is no module {module}",
            "Run from the directory that contains the module, or pass the function: replay.run(my_agent, ...)",
        )
    places = list(found.submodule_search_locations or [])
    place = found.origin or (places[0] if places else None)
    if not _is_here(place):
        raise _outside(fixture, entry, str(place))
    if package == module:
        return found
    # This imports the parent packages, which are under the current directory.
    spec = importlib.util.find_spec(module)
    return spec if spec is not None else found


def _spec_of(package: str) -> ModuleSpec | None:
    if package in sys.modules and getattr(sys.modules[package], "__spec__", None) is None:
        return None
    try:
        return importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None


def _folder_of(file: str) -> Path | None:
    """Return the only folder under the current directory that contains a script; None if there are several or none."""
    found: list[Path] = []
    for count, (folder, folders, files) in enumerate(os.walk(project())):
        folders[:] = sorted(
            each for each in folders if each[:1] != "." and each not in _NOT_SEARCHED
        )
        if file in files and _is_agent(Path(folder) / file):
            found.append(Path(folder))
        if count > FOLDERS_MAX:
            break
    return found[0] if len(found) == 1 else None


def _is_agent(script: Path) -> bool:
    """Return whether a script uses agentobs, so that an untrusted fixture cannot start other scripts."""
    try:
        return "agentobs" in script.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


def _is_here(file: str | None) -> bool:
    """Return whether a file belongs to the project: it is inside the project directory, and not part of Python."""
    if file is None:
        return False
    path = Path(file).resolve()
    directory = project().resolve()
    return (
        path.is_relative_to(directory)
        and path.exists()
        and _INSTALLED.isdisjoint(path.parts)
        and not any(path.is_relative_to(each) for each in _libraries())
        # A project may contain its virtual environment, or be inside one.
        and not any(
            path.is_relative_to(each) and not directory.is_relative_to(each) for each in _prefixes()
        )
    )


def _libraries() -> Iterator[Path]:
    """Yield the directories of the standard library and of installed packages."""
    for name in ("stdlib", "platstdlib", "purelib", "platlib"):
        if path := sysconfig.get_path(name):
            yield Path(path).resolve()
    yield Path(os.__file__).resolve().parent


def _prefixes() -> Iterator[Path]:
    """Yield the directories of Python, and of the virtual environment if there is one."""
    for prefix in (sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix):
        yield Path(prefix).resolve()


def _outside(fixture: Fixture, entry: str, file: str) -> UsageError:
    return _refused(
        fixture,
        f"the recorded entry {entry} is not in a file under {project()}, but in {file}, so it is not started",
        "Run from the directory that contains the module, or pass the function: replay.run(my_agent, ...)",
    )


def _refused(fixture: Fixture, found: str, todo: str) -> UsageError:
    return UsageError(found, where=str(fixture.path), todo=todo)


def close_coroutine(awaitable: Any) -> None:
    """Close a coroutine that will not be awaited, so that Python does not warn about it."""
    if inspect.iscoroutine(awaitable):
        awaitable.close()


async def as_coroutine(awaitable: Any) -> Any:
    """Wrap an awaitable in a coroutine."""
    return await awaitable


def drain(generator: Iterator[Any], has_ended: Callable[[], bool]) -> list[Any]:
    """Iterate over a generator to its end; return the list of its values.

    Args:
        generator: the generator.
        has_ended: is called after each value, and returns whether the recorded consumer stopped at this value. If so,
            the generator is closed.
    """
    values: list[Any] = []
    for value in generator:
        values.append(value)
        if has_ended():
            generator.close()  # type: ignore[attr-defined]  # a generator
            break
    return values


async def drain_async(generator: AsyncIterator[Any], has_ended: Callable[[], bool]) -> list[Any]:
    """Like `drain`, for an async generator."""
    values: list[Any] = []
    async for value in generator:
        values.append(value)
        if has_ended():
            await generator.aclose()  # type: ignore[attr-defined]  # an async generator
            break
    return values
