"""The entry: the function that a recording says its agent was started with.

A fixture is a file that others may have written, so its entry is not just any name: it must be a Python
function that is defined in a file under the current directory, or our own command `agentobs run`.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentobs.errors import UsageError
from replay.fixture import Fixture

OWN = "agentobs.cli.run:answer"
"""The function that `agentobs run` starts."""


def entry_of(fixture: Fixture) -> Callable[..., Any]:
    """Import the recorded entry of a fixture.

    Raises:
        UsageError: the recording names none, its arguments were not recorded, it cannot be imported, or
            it lies outside the current directory.
    """
    entry = fixture.header.get("entry")
    if not isinstance(entry, str) or fixture.header.get("arguments") is None:
        raise _refused(
            fixture,
            f"the arguments of {entry} were no JSON values and are not recorded"
            if entry
            else "the recording does not say how the agent is started",
        )
    module, _, qualified = entry.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    if entry != OWN and not _is_here(_origin(module)):
        raise _refused(fixture, f"the recorded entry {entry} is not in a file under {Path.cwd()}")
    try:
        found: Any = importlib.import_module(module)
        for part in qualified.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise _refused(
            fixture, f"the recorded entry {entry} cannot be imported: {error}"
        ) from error
    code = getattr(inspect.unwrap(found), "__code__", None)
    if entry != OWN and (code is None or not _is_here(code.co_filename)):
        raise _refused(
            fixture, f"the recorded entry {entry} is no function of a file under {Path.cwd()}"
        )
    function: Callable[..., Any] = found
    return function


def runs_recorded(call: functools.partial[Any] | None, fixture: Fixture) -> bool:
    """Return whether a call is the recorded one: of the recorded entry, with its arguments; None stands for it."""
    if call is None:
        return True
    module, name = (getattr(call.func, key, None) for key in ("__module__", "__qualname__"))
    if f"{module}:{name}" != fixture.header.get("entry"):
        return False
    try:
        bound = inspect.signature(call.func).bind(*call.args, **call.keywords)
    except (TypeError, ValueError):
        return False
    given = dict(bound.arguments)
    bound.apply_defaults()
    return fixture.header.get("arguments") in (given, dict(bound.arguments))


def _origin(module: str) -> str | None:
    """Return the file of a module's outermost package, found without importing anything."""
    try:
        spec = importlib.util.find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    places = list(spec.submodule_search_locations or [])
    return spec.origin or (places[0] if places else None)


def _is_here(file: str | None) -> bool:
    if file is None:
        return False
    path = Path(file).resolve()
    here = Path.cwd().resolve()
    return path.exists() and path.is_relative_to(here) and "site-packages" not in path.parts


def _refused(fixture: Fixture, found: str) -> UsageError:
    return UsageError(
        found,
        where=str(fixture.path),
        todo="Run from the directory that holds it, or pass the function: replay.run(my_agent, ...)",
    )


def in_event_loop() -> bool:
    """Return whether an event loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def let_go(awaitable: Any) -> None:
    """Let go of a coroutine that will not be awaited, without a warning about it."""
    if inspect.iscoroutine(awaitable):
        awaitable.close()


async def awaited(awaitable: Any) -> Any:
    """Await whatever can be awaited."""
    return await awaitable
