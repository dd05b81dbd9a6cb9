"""Tools: Python functions that the model may call, and their declarations.

The `tool` decorator makes a tool from a typed function, `declared` from a given schema. The defaults are restrictive: a
tool is assumed to write, to be destructive, to need permission and not to run in parallel.
"""

from __future__ import annotations

import copy
import inspect
import ipaddress
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, Unpack, get_args, overload

from pydantic import AnyUrl, BaseModel, ValidationError
from pydantic_core import ErrorDetails, to_json

from agentobs.agent.permissions import ToolClass
from agentobs.agent.tools.agent_definitions import Agents
from agentobs.agent.tools.input_schema import (
    argument_names,
    described,
    holds_only,
    input_model,
    input_schema,
    named_arguments,
)
from agentobs.errors import UsageError
from agentobs.records.canonical_json import Json
from agentobs.records.exchanges import ToolAnswer

TIMEOUT_S = 120.0
"""Default timeout of a tool, in seconds. Our choice."""

RESULT_CHARS_MAX = 50_000
"""Default maximum length of a result, in characters: about 12,000 tokens. Our choice."""

Function = Callable[..., Any]
"""A sync function, run in its own thread, or an async one, run in the event loop, which it must not block."""

Interrupt = Literal["cancel", "block"]
"""The effect of an abort on a running call: cancel it, or wait for it."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that the model may call. Calling the object calls the function."""

    declaration: Json
    """The declaration for the provider: `name`, `description`, `input_schema`, or whatever was declared."""
    function: Function
    tool_class: ToolClass = "write"
    """Its effect; permission modes depend on it."""
    concurrent: bool | Callable[[dict[str, Any]], bool] = False
    """Whether calls may run in parallel with adjacent calls. A function decides by the arguments; an exception or any
    result except True means no.
    """
    needs_permission: bool = True
    """Whether permission rules and modes apply to its calls."""
    destructive: bool = True
    """Whether a call may have effects that cannot be undone."""
    retries: int = 0
    """How often a call is retried after a failure or timeout. A sync function that timed out may
    still be running then.
    """
    optional: bool = False
    """Whether a turn can do without it; if a tool that is not optional is unavailable, the run ends."""
    available: Callable[[], bool] | None = None
    """Returns whether it is available; called once per turn. None means always."""
    needs_person: bool = False
    """Whether it needs a person at the terminal; without one, its calls fail immediately."""
    cancels_siblings: bool = False
    """Whether its failure stops the calls that run in parallel; the decorator sets it for shell tools."""
    interrupt: Interrupt = "cancel"
    """The effect of an abort on a running call."""
    timeout_s: float | None = TIMEOUT_S
    """Timeout of one attempt, in seconds; None for no timeout."""
    result_chars_max: int = RESULT_CHARS_MAX
    """Maximum length of a result; the model sees only the start and end of a longer one."""
    aliases: tuple[str, ...] = ()
    """Former names: they occur in old recordings, and the model may still use them."""
    subject: str | Callable[[dict[str, Any]], str] | None = None
    """What the patterns of permission rules match: the name of an argument, or a function of all arguments."""
    paths: tuple[str, ...] = ()
    """Arguments that are paths (`str`, `Path`), or flat lists, tuples or sets of them. Any other
    value counts as outside of every root.
    """
    hosts: tuple[str, ...] = ()
    """Arguments that are hosts or URLs (`str`, pydantic's URLs, addresses), or flat lists of them.
    Any other value counts as blocked if any host is blocked.
    """
    check: Callable[..., Any] | None = None
    """Receives some of the validated arguments by name and returns a complaint for the model, or
    None; sync or async. The check of a declared tool receives the whole input, like its function.
    """
    input: type[BaseModel] | None = None
    """The type of the input; None passes the whole input to the function as one dict."""
    agents: Agents | None = None
    """The agents that its calls start. The loop runs them; the function is never called."""

    @property
    def name(self) -> str:
        """The name by which the model calls it."""
        return str(self.declaration["name"])

    @property
    def read_only(self) -> bool:
        """Whether its calls change nothing."""
        return self.tool_class == "read"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself."""
        return self.function(*args, **kwargs)


class Settings(TypedDict, total=False):
    """Settings of a tool; each key is documented at the field of `Tool` with the same name."""

    read_only: bool
    """Short for `tool_class="read"`, which makes it concurrent and not destructive."""
    tool_class: ToolClass
    concurrent: bool | Callable[[dict[str, Any]], bool]
    needs_permission: bool
    destructive: bool
    retries: int
    optional: bool
    available: Callable[[], bool] | None
    needs_person: bool
    cancels_siblings: bool
    interrupt: Interrupt
    timeout_s: float | None
    result_chars_max: int
    aliases: Sequence[str]
    subject: str | Callable[[dict[str, Any]], str] | None
    paths: Sequence[str]
    hosts: Sequence[str]
    check: Callable[..., Any] | None


@overload
def tool(fn: Function) -> Tool: ...


@overload
def tool(
    fn: None = None, *, name: str | None = None, **settings: Unpack[Settings]
) -> Callable[[Function], Tool]: ...


def tool(
    fn: Function | None = None, *, name: str | None = None, **settings: Unpack[Settings]
) -> Tool | Callable[[Function], Tool]:
    """Make a tool from a typed function; use it with or without arguments.

    The docstring's text describes the tool, its section about arguments (Google, NumPy or reST style) the arguments.

    Args:
        fn: the function.
        name: the name for the model; defaults to the function's name.
        settings: see `Tool`.

    Raises:
        UsageError: the signature cannot be expressed as a JSON schema, or the settings contradict each
            other.
    """

    def make(function: Function) -> Tool:
        called = name or getattr(function, "__name__", "")
        model = input_model(function)
        declaration = {"name": called}
        if text := described(function, argument_names(model)).text:
            declaration["description"] = text
        declaration["input_schema"] = input_schema(model)
        return _made(declaration, function, model, settings)

    return make if fn is None else make(fn)


def declared(declaration: Json, function: Function, **settings: Unpack[Settings]) -> Tool:
    """Make a tool from a declaration and a function that receives the input as one dict.

    Raises:
        UsageError: the settings contradict each other.
    """
    return _made(declaration, function, None, settings)


def check_tools(tools: Sequence[Tool]) -> None:
    """Check that tools can be used together.

    Raises:
        UsageError: the settings of a tool contradict each other, or two tools share a name or
            alias.
    """
    owners: dict[str, Tool] = {}
    for each in tools:
        _check_settings(each)
        for name in (each.name, *each.aliases):
            if name in owners:
                field = "name" if name == each.name else "aliases"
                raise _wrong(each, field, f"{name!r} is already the name of {_told(owners[name])}")
            owners[name] = each


def find(tools: Sequence[Tool], name: str) -> Tool | None:
    """Return the tool with that name, or else with that alias."""
    named = next((each for each in tools if each.name == name), None)
    return named or next((each for each in tools if name in each.aliases), None)


def declarations(tools: Sequence[Tool]) -> list[Json]:
    """Return the declarations of some tools for the provider."""
    return [tool.declaration for tool in tools]


@dataclass(frozen=True, slots=True)
class Bound:
    """A tool bound to the arguments of one call."""

    call: Callable[[], Any]
    """Calls the function, once: it may modify its arguments."""
    arguments: dict[str, Any]
    """The validated arguments, including the function's defaults."""
    coerced: tuple[str, ...] = ()
    """Paths of the arguments that were converted from another JSON type, such as `stops.0.x`. Content if they contain
    keys chosen by the model.
    """


def bind(tool: Tool, value: Any) -> Bound:
    """Bind a tool's function to the model's input. The input itself is not modified.

    Raises:
        ValueError: the input is invalid; the message tells the model what to fix.
    """
    if not isinstance(value, dict):
        raise ValueError("the input is not a JSON object; perhaps it was cut")
    try:
        own = copy.deepcopy(value)
        if tool.input is None:
            return Bound(lambda: tool.function(own), own)
        explicit, every = named_arguments(tool.input, own)
        return Bound(lambda: tool.function(**explicit), every, _coerced(tool.input, value))
    except ValidationError as error:
        properties = tool.declaration["input_schema"].get("properties", {})
        raise ValueError(complaints(error, properties)) from error
    except KeyboardInterrupt:
        raise
    except RecursionError as error:
        raise ValueError("the input is nested too deeply") from error
    except BaseException as error:  # a validator of the tool's own
        raise ValueError(_clear(f"its validation failed with {error!r}")) from error


COMPLAINTS_MAX = 20
"""Maximum number of input errors shown to the model at a time. Our choice."""


def complaints(error: ValidationError, properties: Mapping[str, Json] | None = None) -> str:
    """Describe validation errors, one value per line, without pydantic's vocabulary and links.

    Args:
        error: the validation error.
        properties: schemas of the top-level properties, by name, so that the text can list them.
    """
    found = error.errors(include_url=False, include_context=False, include_input=False)
    lines = [_complaint(each, properties) for each in found[:COMPLAINTS_MAX]]
    if len(found) > COMPLAINTS_MAX:
        lines.append(f"and {len(found) - COMPLAINTS_MAX:,} more")
    return _clear("\n".join(lines))


def unknown(tools: Sequence[Tool], name: str) -> ToolAnswer:
    """Return the result for a call of an unknown tool."""
    known = ", ".join(tool.name for tool in tools) or "none"
    text = _clear(f"There is no tool named {name[:200]!r}. The tools are: {known}.")
    return ToolAnswer(text, is_error=True, outcome="unknown")


def invalid(tool: Tool, error: object) -> ToolAnswer:
    """Return the result for a call with invalid input, as reported by `bind` or the tool's own check."""
    text = _clear(f"The input of {tool.name} does not fit:\n{error}")
    return ToolAnswer(text, is_error=True, outcome="invalid")


def check_call(tool: Tool, bound: Bound) -> Callable[[], Any] | None:
    """Return a callable for the tool's own check of a call, or None if it has none."""
    check = tool.check
    if check is None:
        return None
    if tool.input is None:
        return lambda: check(bound.arguments)
    wanted = _parameters(check)
    chosen = {
        name: value
        for name, value in bound.arguments.items()
        if wanted is None or name in wanted.names
    }
    return lambda: check(**chosen)


# --- settings -----------------------------------------------------------------------------------------


def _made(
    declaration: Json, function: Function, model: type[BaseModel] | None, settings: Settings
) -> Tool:
    fields: dict[str, Any] = dict(settings)
    read_only = fields.pop("read_only", None)
    fields.setdefault("tool_class", "read" if read_only else "write")
    fields.setdefault("concurrent", fields["tool_class"] == "read")
    fields.setdefault("destructive", fields["tool_class"] != "read")
    fields.setdefault("cancels_siblings", fields["tool_class"] == "shell")
    for field in ("aliases", "paths", "hosts"):
        if field in fields and not isinstance(fields[field], str):
            fields[field] = tuple(fields[field])
    made = Tool(declaration, function, input=model, **fields)
    if read_only is not None and read_only is not made.read_only:
        found = f"read_only={read_only} contradicts tool_class={made.tool_class!r}"
        raise _wrong(made, "read_only", found)
    _check_settings(made)
    return made


_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}\Z")
"""Names that the provider accepts (according to its error message for others, 2026)."""

_CLOSED: dict[str, tuple[str, ...]] = {
    "tool_class": get_args(ToolClass),
    "interrupt": get_args(Interrupt),
}


def _check_settings(tool: Tool) -> None:
    """Raise a UsageError if the settings of a tool contradict each other or its function."""
    name = tool.declaration.get("name") if isinstance(tool.declaration, dict) else None
    if not isinstance(name, str) or not name or name == "<lambda>":
        raise UsageError(
            f"the tool that calls {_of(tool.function)} has no name",
            todo="Give it one with name=...",
        )
    if not _NAME.match(name):
        raise _wrong(tool, "name", _NO_NAME.format(name))
    for field, allowed in _CLOSED.items():
        if getattr(tool, field) not in allowed:
            found = f"{getattr(tool, field)!r} is not one of {', '.join(allowed)}"
            raise _wrong(tool, field, found)
    if tool.read_only and tool.destructive:
        raise _wrong(tool, "destructive", "a read-only tool cannot be destructive")
    if not isinstance(tool.retries, int) or tool.retries < 0:
        raise _wrong(tool, "retries", f"{tool.retries!r} is not a number of 0 or more")
    if tool.timeout_s is not None and not tool.timeout_s > 0:
        raise _wrong(tool, "timeout_s", f"{tool.timeout_s!r} is not above 0")
    if not isinstance(tool.result_chars_max, int) or tool.result_chars_max < 1:
        raise _wrong(
            tool, "result_chars_max", f"{tool.result_chars_max!r} is not a number of 1 or more"
        )
    for field in ("aliases", "paths", "hosts"):
        if isinstance(getattr(tool, field), str):
            raise _wrong(tool, field, "a string was passed instead of a tuple of names")
    for alias in tool.aliases:
        if not isinstance(alias, str) or not _NAME.match(alias):
            raise _wrong(tool, "aliases", _NO_NAME.format(alias))
    if tool.name in tool.aliases or len(set(tool.aliases)) < len(tool.aliases):
        raise _wrong(tool, "aliases", "a name is repeated, or is the tool's own")
    _check_names(tool)
    _check_places(tool)


_NO_NAME = "{!r} must have 1 to 128 characters: letters a to z and A to Z, digits, `_` and `-`"


def _check_names(tool: Tool) -> None:
    """Raise a UsageError if settings name arguments that the function does not have."""
    known = _argument_names(tool)
    if known is None:
        return
    subject = (tool.subject,) if isinstance(tool.subject, str) else ()
    for field, names in (("subject", subject), ("paths", tool.paths), ("hosts", tool.hosts)):
        for name in names:
            if name not in known:
                raise _wrong(tool, field, f"there is no argument {name!r}")
    taken = _parameters(tool.check) if tool.check and tool.input else None
    for name in taken.required if taken else ():
        if name not in known:
            raise _wrong(tool, "check", f"it takes {name!r}, which is not an argument of the tool")


_PLACES: dict[str, tuple[str, tuple[type, ...]]] = {
    "paths": ("path", (str, os.PathLike)),
    "hosts": ("host", (str, AnyUrl, ipaddress.IPv4Address, ipaddress.IPv6Address)),
}
"""Types allowed for arguments that are paths or hosts."""


def _check_places(tool: Tool) -> None:
    """Raise a UsageError if the type of a path or host argument cannot be checked."""
    if tool.input is None:
        return
    types = {str(field.alias): field.annotation for field in tool.input.model_fields.values()}
    for field, (kind, leaves) in _PLACES.items():
        for name in getattr(tool, field):
            if not holds_only(types[name], leaves):
                found = f"the argument {name!r} is no {kind} and no flat list of them"
                raise _wrong(tool, field, found)


def _argument_names(tool: Tool) -> tuple[str, ...] | None:
    """Return the names of a tool's arguments, or None if its declaration does not list them."""
    if tool.input is not None:
        return argument_names(tool.input)
    schema = tool.declaration.get("input_schema")
    properties = schema.get("properties") if isinstance(schema, dict) else None
    return tuple(properties) if isinstance(properties, dict) else None


@dataclass(frozen=True, slots=True)
class _Parameters:
    names: frozenset[str]
    required: tuple[str, ...]


def _parameters(function: Function) -> _Parameters | None:
    """Return the parameters that a check accepts by name; None if it accepts any or cannot be inspected."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    required = [
        p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_POSITIONAL
    ]
    return _Parameters(frozenset(p.name for p in parameters), tuple(required))


def _wrong(tool: Tool, field: str, found: str) -> UsageError:
    return UsageError(
        f"`{field}` of {_told(tool)} cannot be: {found}",
        todo="Correct it where the tool is defined",
    )


def _told(tool: Tool) -> str:
    return f"the tool {tool.name} ({_of(tool.function)})"


def _of(function: Function) -> str:
    return (
        f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', repr(function))}"
    )


# --- input --------------------------------------------------------------------------------------------


def _coerced(model: type[BaseModel], value: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the paths that strict validation of the same JSON would have refused.

    Strict JSON validation still accepts a string for a date and a list for a set, because JSON has no such types.
    """
    try:
        model.model_validate_json(to_json(value), strict=True)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
    except ValueError:  # a lone surrogate is not JSON
        return ()
    else:
        return ()
    ways = {_way(value, each): None for each in found if each["type"] not in _NO_COERCION}
    ways.pop((), None)
    # A union reports one error per member, some of them for the surrounding value.
    return tuple(
        ".".join(map(str, way))
        for way in ways
        if not any(other[: len(way)] == way for other in ways if other != way)
    )


_NO_COERCION = ("missing", "extra_forbidden")
"""Errors of union members that were not chosen."""


def _way(value: Any, error: ErrorDetails) -> tuple[str | int, ...]:
    """Return the location of an error in the input, without the union members that pydantic inserts.

    Empty if an integer was written as 3.0, because JSON has only one kind of number.
    """
    way: list[str | int] = []
    for step in error["loc"]:
        inside = isinstance(value, dict) and step in value
        if inside or (isinstance(value, list) and isinstance(step, int) and step < len(value)):
            value = value[step]
            way.append(step)
    if error["type"] == "int_type" and isinstance(value, float):
        return ()
    return tuple(way)


def _complaint(found: ErrorDetails, properties: Mapping[str, Json] | None) -> str:
    way, problem = found["loc"], found["msg"]
    top = properties if properties is not None and len(way) == 1 else None
    if found["type"] == "missing":
        kind = top.get(str(way[0]), {}).get("type") if top is not None else None
        problem = f"required, but not given{f' (a value of type {kind})' if kind else ''}"
    elif found["type"] == "extra_forbidden":
        known = f"; there are: {', '.join(top) or 'none'}" if top is not None else ""
        problem = f"there is no argument of this name{known}"
    return f"{'.'.join(map(str, way)) or 'input'}: {problem}"


TEXT_CHARS_MAX = 10_000
"""Maximum length of an error message for the model. Our choice."""


def _clear(text: str) -> str:
    """Return a text that can be sent: of limited length, without lone surrogates."""
    short = text if len(text) <= TEXT_CHARS_MAX else f"{text[:TEXT_CHARS_MAX]} ... (cut)"
    return short.encode("utf-8", "replace").decode("utf-8")
