"""The entry point of a session: the function that started it, and its arguments; also the origin of an exception.

A replay calls the entry point again. If that is impossible, the recording contains the reason: `Entry.obstacle`.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from agentobs.determinism.annotations import classes_in
from agentobs.determinism.callers import OPTIMIZED, UNSHARED_REFERENCES, may_hold_variables
from agentobs.determinism.values import (
    arguments_to_json,
    declared_classes,
    is_not_kept,
    not_kept_in,
)
from agentobs.errors import error_kind, warn_once
from agentobs.records.labels import Label, unchecked

SCRIPT = "__main__"
"""The qualified name of the entry if it is a script that opens the session in its top-level code."""
COMMAND = "@command:"
"""The start of the name of an entry that is a program instead of a function; its arguments contain the command line
under `argv`. No module has such a name.
"""


def is_command(entry: str | None) -> bool:
    """Return whether the entry of a recording is a program instead of a function."""
    return entry is not None and entry.startswith(COMMAND)


_WEB = frozenset(
    [
        "aiohttp",
        "bottle",
        "django",
        "falcon",
        "fastapi",
        "flask",
        "rest_framework",
        "sanic",
        "starlette",
        "tornado",
    ]
)
"""Packages of web frameworks. For each request, the framework creates instances of classes that are derived from its
own.
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """How a session was started."""

    name: str | None = None
    """The function as `module:qualified.name`, or `module:__main__` for a script; None if the function cannot be named
    in this way.
    """
    arguments: dict[str, Any] | None = field(default=None, repr=False)
    """The arguments by name, as JSON (see `determinism.values`); those of `*args` as a list under `*`; for a script,
    the command line under `argv`. None if the entry cannot be called with them.
    """
    obstacle: dict[str, Any] | None = None
    """Why the entry cannot be called again: a `kind` and further facts, see `replay.agent_code.entry_obstacles`; None
    if it can be called.
    """


NOWHERE = Entry()
"""The entry of a session that was not opened by the agent's code."""


def outside() -> Entry:
    """Return the entry of the session for everything that happens outside of other sessions."""
    process = sys.modules.get("multiprocessing.process")
    is_child = process is not None and process.parent_process() is not None
    return Entry(obstacle={"kind": "spawned" if is_child else "outside"})


def entry_of(frame: FrameType) -> Entry:
    """Return the entry of a session that is opened in a frame: the function of that frame."""
    code, variables = frame.f_code, frame.f_globals
    module = str(variables.get("__name__"))
    if code.co_qualname == "<module>":
        return _script(module, code, variables)
    if may_hold_variables(code):
        name, obstacle = name_of(module, code.co_qualname, variables, code)
        return Entry(name, None, obstacle or {"kind": "locals"})
    locals_ = frame.f_locals
    count = code.co_argcount + code.co_kwonlyargcount
    names = [name for name in code.co_varnames[:count] if name in locals_]
    values = {name: locals_[name] for name in names}
    rest: list[Any] = []
    if code.co_flags & inspect.CO_VARARGS:
        rest = list(locals_.get(code.co_varnames[count], ()))
        count += 1
    if code.co_flags & inspect.CO_VARKEYWORDS:
        values = {**locals_.get(code.co_varnames[count], {}), **values}
    # Before Python 3.13, the frame keeps this copy, which would keep objects alive after the session released them. The
    # frame of a class body has no copy.
    is_copy = type(locals_) is dict and code.co_flags & OPTIMIZED
    if is_copy and sys.getrefcount(locals_) <= UNSHARED_REFERENCES:
        locals_.clear()
    if rest:
        values = _positional(values, rest, code)
    return _entry(module, code.co_qualname, variables, code, values)


def entry_of_call(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Entry:
    """Return the entry of a session that is opened for a call of a decorated function. Never raises."""
    inner = inspect.unwrap(function)
    module = str(getattr(inner, "__module__", ""))
    qualified = str(getattr(inner, "__qualname__", "<unknown>"))
    variables, code = getattr(inner, "__globals__", {}), getattr(inner, "__code__", None)
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except (TypeError, ValueError):
        name, obstacle = name_of(module, qualified, variables, code)
        return Entry(name, None, obstacle or {"kind": "signature"})
    values: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            values |= value
        elif kind is inspect.Parameter.VAR_POSITIONAL:
            values = {"*": [*values.values(), *value]}
        else:
            values[name] = value
    return _entry(module, qualified, variables, code, values)


def name_of(
    module: str, qualified: str, variables: Mapping[str, Any], code: CodeType | None
) -> tuple[str | None, dict[str, Any] | None]:
    """Return the name of a function as `module:qualified.name` or None, and the obstacle to calling it by name or None.

    The module of the running script is named after its file, so that a test can import it.
    """
    if module in ("__main__", "__mp_main__"):
        spec, file = variables.get("__spec__"), variables.get("__file__")
        if not spec and not file:
            return None, {"kind": _interactive_source(code)}
        module = spec.name if spec and module == "__main__" else Path(str(file)).stem
    if "<lambda>" in qualified:
        return None, {"kind": "lambda", "module": module}
    if "<" in qualified or not module:
        outer = qualified.partition(".<")[0]
        return None, {"kind": "nested", "module": module, "outer": outer}
    return f"{module}:{qualified}", None


def _interactive_source(code: CodeType | None) -> str:
    """Return the source of code that is not in a file: `notebook` or `interactive`."""
    file = code.co_filename if code is not None else ""
    is_notebook = "ipykernel" in file or "<ipython" in file or "IPython" in sys.modules
    return "notebook" if is_notebook else "interactive"


def _script(module: str, code: CodeType, variables: Mapping[str, Any]) -> Entry:
    """Return the entry of a session that is opened at the top level of a module."""
    name, obstacle = name_of(module, SCRIPT, variables, code)
    if name is not None and module != "__main__":
        return Entry(None, None, {"kind": "import", "module": module})
    if name is None:
        return Entry(None, None, obstacle)
    return Entry(name, {"argv": [str(each) for each in sys.argv[1:]]})


def _positional(values: dict[str, Any], rest: list[Any], code: CodeType) -> dict[str, Any]:
    """Return arguments with all positional arguments in a list under `*`, including the items of `*args`."""
    first = code.co_varnames[: code.co_argcount]
    return {
        "*": [*(values[name] for name in first if name in values), *rest],
        **{name: value for name, value in values.items() if name not in first},
    }


def _entry(
    module: str,
    qualified: str,
    variables: Mapping[str, Any],
    code: CodeType | None,
    values: dict[str, Any],
) -> Entry:
    name, obstacle = name_of(module, qualified, variables, code)
    if name is None:
        return Entry(None, None, obstacle)
    function = _lookup(variables, qualified)
    if "." in qualified:
        name, values, obstacle = _method(name, qualified, variables, values)
    with declared_classes(classes_in(function)):
        written = arguments_to_json(values)
    if unsupported := {
        key: not_kept_in(value) for key, value in written.items() if is_not_kept(value)
    }:
        obstacle = obstacle or {"kind": "arguments", "lost": unsupported}
    facts = {"names": [key for key in written if key != "*"]} if obstacle else {}
    return Entry(name, None if obstacle else written, {**obstacle, **facts} if obstacle else None)


def _method(
    name: str, qualified: str, variables: Mapping[str, Any], values: dict[str, Any]
) -> tuple[str, dict[str, Any], dict[str, Any] | None]:
    """Return the name of a method, its arguments without `self` or `cls`, and the obstacle to calling it. The obstacle
    is None if the method can be called.
    """
    cls, method = _lookup(variables, qualified.rpartition(".")[0]), qualified.rpartition(".")[2]
    if not isinstance(cls, type):
        return name, values, None
    raw = inspect.getattr_static(cls, method, None)
    if isinstance(raw, staticmethod) or not values:
        return name, values, None
    owner, values = _without_first(values)
    kind = owner if isinstance(owner, type) else type(owner)
    if not issubclass(kind, cls):
        return name, values, {"kind": "method", "class": cls.__qualname__}
    module = sys.modules.get(kind.__module__)
    known = vars(module) if module is not None else variables
    full, obstacle = name_of(kind.__module__, f"{kind.__qualname__}.{method}", known, None)
    if full is None or isinstance(owner, type):
        return full or name, values, obstacle
    if (
        instance := next((key for key, each in list(known.items()) if each is owner), None)
    ) is not None:
        return f"{full.partition(':')[0]}:{instance}.{method}", values, None
    if any(base.__module__.partition(".")[0] in _WEB for base in kind.__mro__):
        return full, values, {"kind": "view", "class": kind.__qualname__}
    if required := required_of(kind):
        return (
            full,
            values,
            {"kind": "constructor", "class": kind.__qualname__, "needs": required},
        )
    return full, values, None


def _without_first(values: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    if values.get("*"):
        return values["*"][0], {**values, "*": values["*"][1:]}
    first = next(iter(values))
    return values[first], {key: value for key, value in values.items() if key != first}


def required_of(cls: type) -> list[str]:
    """Return the names of the required arguments of a class's constructor."""
    try:
        parameters = inspect.signature(cls).parameters.values()
    except (TypeError, ValueError):
        return []
    free = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in free]


def _lookup(variables: Mapping[str, Any], qualified: str) -> Any:
    """Return the object with a qualified name in a module; None if there is none."""
    first, *rest = qualified.split(".")
    found = variables.get(first)
    for part in rest:
        found = inspect.getattr_static(found, part, None)
    return found


@functools.cache
def version_of(distribution: str) -> Label | None:
    """Return the installed version of a distribution; None if it is not installed."""
    try:
        return unchecked(version(distribution))
    except PackageNotFoundError:
        return None


def entry_or_nothing(find: Callable[[], Entry]) -> Entry:
    """Return the entry of a session, as found by `find`; an empty entry if `find` raises an exception."""
    try:
        return find()
    except Exception as error:
        warn_once(f"how a session was started is not recorded: {error_kind(error)}", about="entry")
        return NOWHERE
