"""Tools: Python functions that the model may call, and their declarations.

The `tool` decorator creates a tool from a typed function. `declared` creates a tool from a function and its schema. The
defaults are restrictive: a tool is assumed to write, to be destructive, to need permission, and not to run in parallel.
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

from agentobs.agent.arguments import check_list
from agentobs.agent.permissions import ToolClass
from agentobs.agent.tools.agent_definitions import Agents
from agentobs.agent.tools.input_schema import (
    argument_names,
    holds_only,
    input_model,
    input_schema,
    named_arguments,
    parsed_docstring,
)
from agentobs.agent.tools.tool_runs import FAILURES_MAX, Service, is_failure_limit
from agentobs.errors import UsageError
from agentobs.records.canonical_json import Json
from agentobs.records.exchanges import ToolAnswer

TIMEOUT_S = 120.0
"""Default timeout of a tool, in seconds. Our choice."""

RESULT_CHARS_MAX = 50_000
"""Default maximum length of a result, in characters: about 12,000 tokens. Our choice."""

Function = Callable[..., Any]
"""A sync function, which runs in its own thread, or an async function, which runs in the event loop and must not block
it.
"""

Interrupt = Literal["cancel", "block"]
"""The effect of an abort or a steering message on a running call: cancel it, or wait for it."""

InputPredicate = Callable[[dict[str, Any]], bool]
"""A pure function of the validated arguments of a call. It is evaluated again in a replay."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that the model may call. Calling the object calls the function."""

    declaration: Json
    """The declaration for the provider: `name`, `description` and `input_schema`, or other keys that were declared."""
    function: Function
    tool_class: ToolClass = "write"
    """The effect of its calls, on which permission modes depend."""
    read_only_if: InputPredicate | None = None
    """Returns True for the arguments of calls that change nothing; `read_only=FUNCTION` sets it. These calls count as
    read-only in all decisions. If it is None, `tool_class` applies to all calls.
    """
    concurrent: bool | InputPredicate = False
    """Whether a call may run in parallel with adjacent calls. If this is a function, it receives the arguments of the
    call, and the call may run in parallel only if the function returns True.
    """
    needs_permission: bool = True
    """Whether permission rules and modes apply to its calls."""
    destructive: bool | InputPredicate = True
    """Whether a call may have effects that cannot be undone. If this is a function, it receives the arguments of the
    call, and the call counts as not destructive only if the function returns False.
    """
    retries: int = 0
    """How often a call is retried after a failure or a timeout. During a retry, a sync function that timed out may
    still be running.
    """
    optional: bool = False
    """Whether the run continues without this tool if it is unavailable. Otherwise, the run ends."""
    available: Callable[[], bool] | None = None
    """Returns whether the tool is available; called once per turn. None means that the tool is always available."""
    needs_person: bool = False
    """Whether its calls need a person. Without a person, they fail immediately."""
    cancels_siblings: bool = False
    """Whether a failed call stops the calls that run in parallel; true by default for shell tools."""
    interrupt: Interrupt | None = None
    """What interrupts a running call: an abort and a steering message (`cancel`), neither of them (`block`), or only an
    abort (None).
    """
    timeout_s: float | None = TIMEOUT_S
    """Timeout of one attempt, in seconds; None for no timeout."""
    result_chars_max: int = RESULT_CHARS_MAX
    """Maximum length of a result, in characters. The model sees only the start and end of a longer result."""
    aliases: tuple[str, ...] = ()
    """Former names, which occur in old recordings and which the model may still use."""
    subject: str | Callable[[dict[str, Any]], str] | None = None
    """The text that patterns of permission rules match: the name of an argument, or a function of all arguments."""
    paths: tuple[str, ...] = ()
    """Names of the arguments that are paths (`str` or `Path`), or flat lists, tuples or sets of paths. Any other value
    counts as a path outside of every root.
    """
    hosts: tuple[str, ...] = ()
    """Names of the arguments that are hosts or URLs (`str`, pydantic's URLs, addresses), or flat lists, tuples or sets
    of them. If any host is blocked, any other value counts as a blocked host.
    """
    check: Callable[..., Any] | None = None
    """A function, sync or async, that checks a call before it runs. It receives validated arguments by name, and
    returns a complaint for the model, or None. The check of a declared tool receives the complete input as one dict.
    """
    input: type[BaseModel] | None = None
    """The type of the input. If it is None, the function receives the complete input as one dict."""
    agents: Agents | None = None
    """The agents that its calls can start. The loop runs them, and never calls the function."""
    withdraw_after: int | None = None
    """The number of consecutive failures after which the tool is withdrawn for the rest of the conversation. Exceptions
    and timeouts are failures, after all retries. None means never.
    """
    fallback: str | None = None
    """The name of the tool that gets the calls of this tool while it is unavailable, if their input fits."""
    service: Service | None = None
    """The service that the tool uses. All tools of a service share its circuit breaker."""

    @property
    def name(self) -> str:
        """The name by which the model calls it."""
        return str(self.declaration["name"])

    @property
    def names(self) -> tuple[str, ...]:
        """The name and the aliases."""
        return (self.name, *self.aliases)

    @property
    def may_be_unavailable(self) -> bool:
        """Whether the tool can be withdrawn, or belongs to a service."""
        return self.withdraw_after is not None or self.service is not None

    @property
    def read_only(self) -> bool:
        """Whether all of its calls change nothing; see also `read_only_if`."""
        return self.tool_class == "read"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself."""
        return self.function(*args, **kwargs)


class Settings(TypedDict, total=False):
    """Settings of a tool. Each key has the same meaning as the field of `Tool` with this name."""

    read_only: bool | InputPredicate
    """True is shorthand for `tool_class="read"`, which by default makes the tool concurrent and not destructive. A
    function sets `read_only_if`, and by default makes the calls for which it returns True concurrent.
    """
    tool_class: ToolClass
    concurrent: bool | InputPredicate
    needs_permission: bool
    destructive: bool | InputPredicate
    retries: int
    optional: bool
    available: Callable[[], bool] | None
    needs_person: bool
    cancels_siblings: bool
    interrupt: Interrupt | None
    timeout_s: float | None
    result_chars_max: int
    aliases: Sequence[str]
    subject: str | Callable[[dict[str, Any]], str] | None
    paths: Sequence[str]
    hosts: Sequence[str]
    check: Callable[..., Any] | None
    withdraw_after: int | None
    fallback: str | Tool | None
    """The tool, or its name."""
    service: str | Service | None
    """The service, or the name of a service with the default settings."""


@overload
def tool(fn: Function) -> Tool: ...


@overload
def tool(
    fn: None = None, *, name: str | None = None, **settings: Unpack[Settings]
) -> Callable[[Function], Tool]: ...


def tool(
    fn: Function | None = None, *, name: str | None = None, **settings: Unpack[Settings]
) -> Tool | Callable[[Function], Tool]:
    """Create a tool from a typed function. This decorator can be used with or without arguments.

    The description of the tool is the text of the docstring. The descriptions of the arguments are in the docstring's
    section about arguments (Google, NumPy or reST style).

    Args:
        fn: the function.
        name: the name for the model; defaults to the function's name.
        settings: see `Tool`.

    Raises:
        UsageError: the signature cannot be expressed as a JSON schema, or the settings contradict each
            other.
    """

    def make(function: Function) -> Tool:
        tool_name = name or getattr(function, "__name__", "")
        model = input_model(function)
        declaration = {"name": tool_name}
        if text := parsed_docstring(function, argument_names(model)).text:
            declaration["description"] = text
        declaration["input_schema"] = input_schema(model)
        return _make_tool(declaration, function, model, settings)

    return make if fn is None else make(fn)


def declared(declaration: Json, function: Function, **settings: Unpack[Settings]) -> Tool:
    """Create a tool from a declaration and a function that receives the input as one dict.

    Raises:
        UsageError: the settings contradict each other.
    """
    return _make_tool(declaration, function, None, settings)


def check_tools(tools: Sequence[Tool]) -> None:
    """Check that tools can be used together.

    Raises:
        UsageError: they are not a list of tools, the settings of a tool contradict each other, or two
            tools share a name or alias.
    """
    check_list(tools, "tools", Tool, "Pass a list of tools, each created with @agentobs.agent.tool")
    owners: dict[str, Tool] = {}
    for each in tools:
        _check_settings(each)
        for name in (each.name, *each.aliases):
            if name in owners:
                field = "name" if name == each.name else "aliases"
                raise _settings_error(
                    each, field, f"{name!r} is already the name of {_described_tool(owners[name])}"
                )
            owners[name] = each
    _check_services(tools)


def check_fallbacks(tools: Sequence[Tool]) -> None:
    """Check that the fallbacks of tools are among the tools.

    Raises:
        UsageError: a fallback is missing, or is the tool itself.
    """
    for each in tools:
        if each.fallback is None:
            continue
        found = find_tool(tools, each.fallback)
        if found is None or found is each:
            why = "the tool itself" if found is each else f"there is no tool {each.fallback!r}"
            raise _settings_error(each, "fallback", why)


def _check_services(tools: Sequence[Tool]) -> None:
    """Raise a UsageError if two tools define the same service differently."""
    services: dict[str, tuple[Service, Tool]] = {}
    for each in tools:
        if each.service is None:
            continue
        known, other = services.setdefault(each.service.name, (each.service, each))
        if known != each.service:
            found = f"{_described_tool(other)} has other settings for the service {known.name}"
            raise _settings_error(each, "service", found)


def find_tool(tools: Sequence[Tool], name: str) -> Tool | None:
    """Return the tool with this name or, if there is none, with this alias; None if it is unknown."""
    named = next((each for each in tools if each.name == name), None)
    return named or next((each for each in tools if name in each.aliases), None)


def declarations(tools: Sequence[Tool]) -> list[Json]:
    """Return the declarations of tools for the provider."""
    return [tool.declaration for tool in tools]


@dataclass(frozen=True, slots=True)
class Bound:
    """A tool bound to the arguments of one call."""

    call: Callable[[], Any]
    """Calls the function. Can be used only once, because the function may modify its arguments."""
    arguments: dict[str, Any]
    """The validated arguments, including the function's defaults."""
    coerced: tuple[str, ...] = ()
    """Paths of the arguments that were converted from another JSON type, such as `stops.0.x`. They count as content,
    because they may contain keys that the model chose.
    """


def bind(tool: Tool, value: Any) -> Bound:
    """Bind a tool's function to the model's input. The input itself is not modified.

    Raises:
        ValueError: the input is invalid. The message is for the model, and describes the errors.
    """
    if not isinstance(value, dict):
        raise ValueError("the input is not a JSON object; perhaps it was cut off")
    try:
        copied = copy.deepcopy(value)
        if tool.input is None:
            return Bound(lambda: tool.function(copied), copied)
        explicit, every = named_arguments(tool.input, copied)
        return Bound(lambda: tool.function(**explicit), every, _coerced_paths(tool.input, value))
    except ValidationError as error:
        properties = tool.declaration["input_schema"].get("properties", {})
        raise ValueError(complaints(error, properties)) from error
    except KeyboardInterrupt:
        raise
    except RecursionError as error:
        raise ValueError("the input is nested too deeply") from error
    except BaseException as error:  # such as an exception of a validator in the tool's type
        raise ValueError(_sendable(f"its validation failed with {error!r}")) from error


COMPLAINTS_MAX = 20
"""Maximum number of input errors shown to the model at a time. Our choice."""


def complaints(error: ValidationError, properties: Mapping[str, Json] | None = None) -> str:
    """Describe validation errors for the model, one per line, without links.

    Args:
        error: the validation error.
        properties: schemas of the top-level properties by name; the text lists the properties.
    """
    found = error.errors(include_url=False, include_context=False, include_input=False)
    lines = [_complaint(each, properties) for each in found[:COMPLAINTS_MAX]]
    if len(found) > COMPLAINTS_MAX:
        lines.append(f"and {len(found) - COMPLAINTS_MAX:,} more")
    return _sendable("\n".join(lines))


def unknown_tool_result(tools: Sequence[Tool], name: str) -> ToolAnswer:
    """Return the result for a call of an unknown tool."""
    known = ", ".join(tool.name for tool in tools) or "none"
    text = _sendable(f"There is no tool named {name[:200]!r}. The tools are: {known}.")
    return ToolAnswer(text, is_error=True, outcome="unknown")


def invalid_input_result(tool: Tool, error: object) -> ToolAnswer:
    """Return the result for a call whose input `bind` or the tool's check refused."""
    text = _sendable(f"The input of {tool.name} is invalid:\n{error}")
    return ToolAnswer(text, is_error=True, outcome="invalid")


def check_call(tool: Tool, bound: Bound) -> Callable[[], Any] | None:
    """Return a callable that runs the tool's check of a call; None if the tool has no check."""
    check = tool.check
    if check is None:
        return None
    if tool.input is None:
        return lambda: check(bound.arguments)
    parameters_of_check = _parameters(check)
    chosen = {
        name: value
        for name, value in bound.arguments.items()
        if parameters_of_check is None or name in parameters_of_check.names
    }
    return lambda: check(**chosen)


# --- settings -----------------------------------------------------------------------------------------


def _make_tool(
    declaration: Json, function: Function, model: type[BaseModel] | None, settings: Settings
) -> Tool:
    fields: dict[str, Any] = dict(settings)
    read_only = fields.pop("read_only", None)
    if callable(read_only):
        fields["read_only_if"] = read_only
        fields.setdefault("concurrent", read_only)
    fields.setdefault("tool_class", "read" if read_only is True else "write")
    fields.setdefault("concurrent", fields["tool_class"] == "read")
    fields.setdefault("destructive", fields["tool_class"] != "read")
    fields.setdefault("cancels_siblings", fields["tool_class"] == "shell")
    for field in ("aliases", "paths", "hosts"):
        if field in fields and not isinstance(fields[field], str):
            fields[field] = tuple(fields[field])
    if isinstance(fields.get("fallback"), Tool):
        fields["fallback"] = fields["fallback"].name
    if isinstance(fields.get("service"), str):
        fields["service"] = Service(fields["service"])
    new_tool = Tool(declaration, function, input=model, **fields)
    is_constant = read_only is not None and not callable(read_only)
    if is_constant and read_only is not new_tool.read_only:
        found = f"read_only={read_only} contradicts tool_class={new_tool.tool_class!r}"
        raise _settings_error(new_tool, "read_only", found)
    _check_settings(new_tool)
    return new_tool


_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}\Z")
"""The names that the provider accepts (according to its error message for invalid names, 2026)."""

_CHOICES: dict[str, tuple[str, ...]] = {
    "tool_class": get_args(ToolClass),
    "interrupt": get_args(Interrupt),
}

_PREDICATES = ("read_only_if", "concurrent", "destructive")
"""The settings that may be functions of the input."""


def _check_settings(tool: Tool) -> None:
    """Raise a UsageError if the settings of a tool contradict each other or its function."""
    name = tool.declaration.get("name") if isinstance(tool.declaration, dict) else None
    if not isinstance(name, str) or not name or name == "<lambda>":
        raise UsageError(
            f"the tool that calls {_qualified_name(tool.function)} has no name",
            todo="Pass name=...",
        )
    if not _NAME.match(name):
        raise _settings_error(tool, "name", _INVALID_NAME.format(name))
    for field, allowed in _CHOICES.items():
        is_unset = field == "interrupt" and tool.interrupt is None
        if getattr(tool, field) not in allowed and not is_unset:
            found = f"{getattr(tool, field)!r} is not one of {', '.join(allowed)}"
            raise _settings_error(tool, field, found)
    _check_effects(tool)
    _check_failure_settings(tool)
    if not isinstance(tool.retries, int) or tool.retries < 0:
        raise _settings_error(tool, "retries", f"{tool.retries!r} must be 0 or more")
    if tool.timeout_s is not None and not tool.timeout_s > 0:
        raise _settings_error(tool, "timeout_s", f"{tool.timeout_s!r} must be above 0")
    if not isinstance(tool.result_chars_max, int) or tool.result_chars_max < 1:
        raise _settings_error(
            tool, "result_chars_max", f"{tool.result_chars_max!r} must be 1 or more"
        )
    for field in ("aliases", "paths", "hosts"):
        if isinstance(getattr(tool, field), str):
            raise _settings_error(tool, field, "a string was passed instead of a tuple of names")
    for alias in tool.aliases:
        if not isinstance(alias, str) or not _NAME.match(alias):
            raise _settings_error(tool, "aliases", _INVALID_NAME.format(alias))
    if tool.name in tool.aliases or len(set(tool.aliases)) < len(tool.aliases):
        raise _settings_error(tool, "aliases", "an alias is repeated, or is the name of the tool")
    _check_names(tool)
    _check_resource_types(tool)


def _check_effects(tool: Tool) -> None:
    """Raise a UsageError if the settings about the effects of calls contradict each other."""
    if tool.read_only and tool.destructive:
        raise _settings_error(tool, "destructive", "a read-only tool cannot be destructive")
    if tool.read_only and tool.read_only_if is not None:
        found = "it is a function, but the tool_class 'read' makes every call read-only"
        raise _settings_error(tool, "read_only", found)
    for field in _PREDICATES:
        value = getattr(tool, field)
        name = field.removesuffix("_if")
        if not (isinstance(value, bool) or callable(value) or (value is None and name != field)):
            found = f"{value!r} is neither True or False nor a function of the input"
            raise _settings_error(tool, name, found)
        if inspect.iscoroutinefunction(value):
            raise _settings_error(tool, name, "it is an async function; pass a sync function")


def _check_failure_settings(tool: Tool) -> None:
    """Raise a UsageError if the settings about failures are invalid."""
    if tool.withdraw_after is not None and not is_failure_limit(tool.withdraw_after):
        found = f"{tool.withdraw_after!r} is not a number from 1 to {FAILURES_MAX}"
        raise _settings_error(tool, "withdraw_after", found)
    if tool.service is not None and not isinstance(tool.service, Service):
        raise _settings_error(tool, "service", f"{tool.service!r} is not a Service or its name")
    if tool.fallback is not None and not isinstance(tool.fallback, str):
        raise _settings_error(tool, "fallback", f"{tool.fallback!r} is not a tool or its name")
    if tool.fallback is not None and not tool.may_be_unavailable:
        found = "the tool is never unavailable; set withdraw_after or service, too"
        raise _settings_error(tool, "fallback", found)


_INVALID_NAME = "{!r} must have 1 to 128 characters: letters a to z and A to Z, digits, `_` and `-`"


def _check_names(tool: Tool) -> None:
    """Raise a UsageError if settings name arguments that the function does not have."""
    known = _argument_names(tool)
    if known is None:
        return
    subject = (tool.subject,) if isinstance(tool.subject, str) else ()
    for field, names in (("subject", subject), ("paths", tool.paths), ("hosts", tool.hosts)):
        for name in names:
            if name not in known:
                raise _settings_error(tool, field, f"there is no argument {name!r}")
    check_parameters = _parameters(tool.check) if tool.check and tool.input else None
    for name in check_parameters.required if check_parameters else ():
        if name not in known:
            raise _settings_error(
                tool, "check", f"it takes {name!r}, which is not an argument of the tool"
            )


_RESOURCE_TYPES: dict[str, tuple[str, tuple[type, ...]]] = {
    "paths": ("path", (str, os.PathLike)),
    "hosts": ("host", (str, AnyUrl, ipaddress.IPv4Address, ipaddress.IPv6Address)),
}
"""The types that arguments for paths and hosts may have."""


def _check_resource_types(tool: Tool) -> None:
    """Raise a UsageError if the type of a path or host argument cannot be checked."""
    if tool.input is None:
        return
    types = {str(field.alias): field.annotation for field in tool.input.model_fields.values()}
    for field, (kind, leaves) in _RESOURCE_TYPES.items():
        for name in getattr(tool, field):
            if not holds_only(types[name], leaves):
                found = f"the argument {name!r} must be a {kind} or a flat list of {kind}s"
                raise _settings_error(tool, field, found)


def _argument_names(tool: Tool) -> tuple[str, ...] | None:
    """Return the names of a tool's arguments; None if its declaration does not list them."""
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
    """Return the parameters that a check accepts by name; None if it accepts any name or cannot be inspected."""
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


def _settings_error(tool: Tool, field: str, found: str) -> UsageError:
    return UsageError(
        f"`{field}` of {_described_tool(tool)} is invalid: {found}",
        todo="Correct it in the definition of the tool",
    )


def _described_tool(tool: Tool) -> str:
    return f"the tool {tool.name} ({_qualified_name(tool.function)})"


def _qualified_name(function: Function) -> str:
    return (
        f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', repr(function))}"
    )


# --- input --------------------------------------------------------------------------------------------


def _coerced_paths(model: type[BaseModel], value: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the paths of values that were converted. These are the values that strict validation rejects.

    Strict validation of JSON accepts a string for a date and a list for a set, because JSON does not have these types.
    """
    try:
        model.model_validate_json(to_json(value), strict=True)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
    except ValueError:  # a lone surrogate is not JSON
        return ()
    else:
        return ()
    paths = {_error_path(value, each): None for each in found if each["type"] not in _NO_COERCION}
    paths.pop((), None)
    # A union reports one error per member, and some of these errors have the path of the enclosing
    # value. Keep only the most specific paths.
    return tuple(
        ".".join(map(str, path))
        for path in paths
        if not any(other[: len(path)] == path for other in paths if other != path)
    )


_NO_COERCION = ("missing", "extra_forbidden")
"""Types of errors that are not failed conversions. Rejected members of a union report them."""


def _error_path(value: Any, error: ErrorDetails) -> tuple[str | int, ...]:
    """Return the path of an error in the input, without the names of union members that pydantic inserts.

    The path is empty if an integer was written as 3.0, which is not a conversion, because JSON has only one type of
    number.
    """
    path: list[str | int] = []
    for step in error["loc"]:
        inside = isinstance(value, dict) and step in value
        if inside or (isinstance(value, list) and isinstance(step, int) and step < len(value)):
            value = value[step]
            path.append(step)
    if error["type"] == "int_type" and isinstance(value, float):
        return ()
    return tuple(path)


def _complaint(found: ErrorDetails, properties: Mapping[str, Json] | None) -> str:
    path, problem = found["loc"], found["msg"]
    top_properties = properties if properties is not None and len(path) == 1 else None
    if found["type"] == "missing":
        kind = (
            top_properties.get(str(path[0]), {}).get("type") if top_properties is not None else None
        )
        problem = f"required, but missing{f' (expected type: {kind})' if kind else ''}"
    elif found["type"] == "extra_forbidden":
        known = (
            f"; the arguments are: {', '.join(top_properties) or 'none'}"
            if top_properties is not None
            else ""
        )
        problem = f"there is no argument with this name{known}"
    return f"{'.'.join(map(str, path)) or 'input'}: {problem}"


TEXT_CHARS_MAX = 10_000
"""Maximum length of an error message for the model. Our choice."""


def _sendable(text: str) -> str:
    """Limit the length of a text, and replace lone surrogates, which cannot be sent."""
    limited = text if len(text) <= TEXT_CHARS_MAX else f"{text[:TEXT_CHARS_MAX]} ... (cut)"
    return limited.encode("utf-8", "replace").decode("utf-8")
