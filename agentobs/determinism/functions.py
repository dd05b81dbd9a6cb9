"""Recorded functions: tools of foreign agents, which take part in recordings and replays.

    @beta_tool
    @agentobs.record_tool
    def lookup(order_id: str) -> str:
        ...

Each call becomes a `ToolExchange` with the ID of the model's tool call, if a response contains it; otherwise with an ID
that counts the calls of that name in the lane. Model requests of the function itself are in a lane of their own under
that call. A replay decides whether the function runs, and what it returns.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import inspect
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ParamSpec, Protocol, TypeVar, overload

from agentobs import tracing, world
from agentobs.determinism.pending_calls import Outstanding
from agentobs.determinism.values import (
    NotKept,
    is_raised,
    kept,
    kept_arguments,
    kept_error,
    raised_again,
    read_back,
    register_type,
)
from agentobs.errors import ReplaySays, UsageError, error_kind, say_once
from agentobs.records.canonical_json import canonical
from agentobs.records.exchanges import (
    Place,
    ToolAnswer,
    ToolExchange,
    ToolOutcome,
    ToolQuestion,
    lane_under,
)
from agentobs.runtime import current, process
from agentobs.sink import sink

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Function:
    """A function that is recorded."""

    name: str
    """The name of the tool that the model knows."""
    is_mutating: bool
    """Whether it changes something outside: then a replay runs it only if it is named."""
    function: Callable[..., Any]
    signature: inspect.Signature


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a recorded function."""

    of: Function
    place: Place
    question: ToolQuestion
    """The call; its input is the arguments by name, in the form of `values`."""
    started_ns: int
    started: int
    """Its start by the monotonic clock."""
    is_counted: bool = False
    """Whether its ID counts the calls of that name in the lane, because the model's ID is unknown."""


class Answerer(Protocol):
    """Decides in a replay what happens to a call."""

    def begin(self, call: Call) -> tuple[Call, ToolAnswer | None]:
        """Return a call as it was recorded, and its answer, or None if the function is to run; may raise an error of
        the replay.
        """

    def ended(self, call: Call, answer: ToolAnswer) -> None:
        """Receive the outcome of a function that ran; may raise an error of the replay."""

    def unreadable(self, call: Call, why: str) -> BaseException:
        """Return the exception for an answer that cannot be converted back to a value."""

    async def cancelled(self, call: Call) -> Any:
        """Wait for the cancellation by the caller, as recorded; raise if it does not come."""


def _answerer() -> Answerer | None:
    found: Answerer | None = current().functions
    return found


def _outstanding() -> Outstanding:
    """Return the pending tool calls; a replay has its own."""
    return current().part(Outstanding)


@overload
def record_tool(function: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def record_tool(
    *, name: str | None = None, mutating: bool = False, returns: type | Collection[type] = ()
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def record_tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    mutating: bool = False,
    returns: type | Collection[type] = (),
) -> Any:
    """Record each call of a function, sync or async, as a tool call; a replay answers it from the recording.

    Apply it directly to the function, below the decorators that turn it into a tool. It changes neither the return
    values or exceptions of the function nor its signature and docstring.

    Args:
        function: the function, if the decorator is used without arguments.
        name: the name by which the model calls it; default the function's.
        mutating: whether it changes something outside. A replay runs a mutating function only if it is named.
        returns: classes of return values that are recorded; see `agentobs.register_type`.

    Raises:
        UsageError: it is not a plain function: a generator, a class, or a tool made of a function.
    """
    for each in (returns,) if isinstance(returns, type) else returns:
        register_type(each)

    def decorate(decorated: Callable[..., Any]) -> Callable[..., Any]:
        _check(decorated)
        told = name or str(getattr(decorated, "__name__", type(decorated).__name__))
        process.listener = _heard
        return _wrapped(Function(told, mutating, decorated, inspect.signature(decorated)))

    return decorate if function is None else decorate(function)


def _heard(exchange: Any) -> None:
    _outstanding().heard(exchange)


def _check(function: Any) -> None:
    """Reject functions that cannot be recorded.

    Raises:
        UsageError: the function cannot be recorded.
    """
    what, todo = (
        "",
        "Put record_tool next to the function: below the decorators that turn it into a tool",
    )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        what, todo = "a generator", "Return a list, or record a function that does not yield"
    elif isinstance(function, type):
        what = "a class"
    elif (
        isinstance(function, staticmethod | classmethod)
        or not callable(function)
        or hasattr(function, "input_schema")
    ):
        what = f"a {type(function).__name__}"
    if what:
        named = getattr(function, "__qualname__", None) or type(function).__qualname__
        raise UsageError(f"{what} cannot be recorded as a tool", where=str(named), todo=todo)


def _wrapped(told: Function) -> Callable[..., Any]:
    function = told.function
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - whether that is async is the question
    ):

        async def run_async(*args: Any, **kwargs: Any) -> Any:
            begun = _begun(told, args, kwargs)
            if begun is None:
                return await function(*args, **kwargs)
            call, given = _given(begun)
            if given is None:
                with _running(call) as running:
                    running.value = await function(*args, **kwargs)
                return running.value
            if given.outcome == "aborted" and (answerer := _answerer()) is not None:
                return await answerer.cancelled(call)
            return _value(call, given)

        return functools.wraps(function)(run_async)

    def run(*args: Any, **kwargs: Any) -> Any:
        begun = _begun(told, args, kwargs)
        if begun is None:
            return function(*args, **kwargs)
        call, given = _given(begun)
        if given is None:
            with _running(call) as running:
                running.value = function(*args, **kwargs)
            return running.value
        return _value(call, given)

    return functools.wraps(function)(run)


def _begun(told: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    """Return a call that starts; None if it is not recorded, because the agent loop of agentobs records its calls
    itself.
    """
    try:
        here = tracing.place() or (process.place_outside and process.place_outside())
        if here is None or here.turn is not None:
            return None
        try:
            bound = told.signature.bind(*args, **kwargs)
        except TypeError:
            return None
        arguments = _by_name(bound, told.signature)
        found = _outstanding().take(here, told.name, functools.partial(_fits, told, arguments))
        lane, tool_use_id = found or (here.lane, _outstanding().number(here, told.name))
        question = ToolQuestion(tool_use_id, told.name, kept_arguments(arguments))
        here = dataclasses.replace(here, lane=lane)
        return Call(told, here, question, world.now(), world.monotonic(), found is None)
    except Exception as error:
        _say(error)
        return None


def _given(call: Call) -> tuple[Call, ToolAnswer | None]:
    """Return a call, and the answer of a replay; None if the function is to run."""
    answerer = _answerer()
    if answerer is None:
        return call, None
    call, given = answerer.begin(call)
    if given is not None:
        _emit(call, given)
    return call, given


def _value(call: Call, given: ToolAnswer) -> Any:
    """Return the value of a recorded answer, or raise its exception."""
    try:
        if is_raised(given.content):
            module = sys.modules.get(str(getattr(call.of.function, "__module__", "")))
            error = raised_again(given.content, () if module is None else (module,))
        else:
            return read_back(given.content)
    except NotKept as unknown:
        answerer = _answerer()
        assert answerer is not None
        raise answerer.unreadable(call, str(unknown)) from unknown
    raise error


class _Running:
    """A function that runs."""

    value: Any = None


@contextlib.contextmanager
def _running(call: Call) -> Iterator[_Running]:
    """Stay in the lane of a call while its function runs, and emit the outcome."""
    running = _Running()
    lane = lane_under(call.place.lane, call.question.tool_use_id)
    inside = dataclasses.replace(call.place, lane=lane, query_source="sub_agent")
    try:
        with tracing.at(inside):
            yield running
    except ReplaySays:
        raise
    except BaseException as error:
        is_failure = isinstance(error, Exception | SystemExit)
        _tell(call, kept_error(error), "failed" if is_failure else "aborted")
        raise
    _tell(call, kept(running.value), "executed")


def _tell(call: Call, content: Any, outcome: ToolOutcome) -> None:
    answer = ToolAnswer(content, is_error=outcome != "executed", outcome=outcome)
    if (answerer := _answerer()) is not None:
        answerer.ended(call, answer)
    _emit(call, answer)


def _emit(call: Call, answer: ToolAnswer) -> None:
    duration_ns = max(world.monotonic() - call.started, 0)
    try:
        sink.emit(
            ToolExchange(
                place=call.place,
                started_ns=call.started_ns,
                duration_ns=duration_ns,
                question=call.question,
                answer=answer,
                tool=call.of.name,
                executed_input=call.question.input,
                is_function=True,
            )
        )
    except Exception as error:
        _say(error)


def _say(error: Exception) -> None:
    with contextlib.suppress(Exception):  # even the text of an error may fail
        text = f"a tool call was not recorded: {error_kind(error)}. The agent continues."
        say_once(text, about=f"record_tool {type(error).__name__}")


def _by_name(bound: inspect.BoundArguments, signature: inspect.Signature) -> dict[str, Any]:
    """Return arguments by name, with those of `**` among the others."""
    arguments = dict(bound.arguments)
    for name, parameter in signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            arguments = {**arguments.pop(name, {}), **arguments}
        elif parameter.kind is inspect.Parameter.VAR_POSITIONAL and name in arguments:
            arguments[name] = list(arguments[name])
    return arguments


def _fits(told: Function, arguments: Mapping[str, Any], given: Any) -> bool:
    """Return whether arguments are the input of a call: all of it, plus only defaults and arguments of the framework.

    A function may also get the whole input as one argument.
    """
    if not isinstance(given, dict):
        return False
    shown = {name: _plain(value) for name, value in arguments.items()}
    if all(name in shown and _same(shown[name], value) for name, value in given.items()):
        more = shown.keys() - given.keys()
        return all(_is_aside(told, name, arguments[name]) for name in more)
    return any(isinstance(value, dict) and _same(value, given) for value in shown.values())


def _is_aside(told: Function, name: str, value: Any) -> bool:
    parameter = told.signature.parameters.get(name)
    is_default = parameter is not None and value is parameter.default
    return is_default or _plain(value) is _NO_JSON or value is None


class _NoJson:
    """Stands for a value that is not part of an input."""


_NO_JSON = _NoJson()


def _same(shown: Any, given: Any) -> bool:
    if shown is _NO_JSON:
        return False
    return canonical(shown) == canonical(given) or str(shown) == str(given)


def _plain(value: Any) -> Any:
    """Return a value as the JSON from which a framework made it."""
    match value:
        case enum.Enum():
            return value.value
        case None | str() | bool() | int() | float():
            return value
        case dict():
            return {str(key): _plain(inner) for key, inner in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_plain(inner) for inner in value]
    for method in ("model_dump", "isoformat"):
        if callable(found := getattr(value, method, None)) and not isinstance(value, type):
            return found(mode="json") if method == "model_dump" else found()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        # A framework's context object may be one as well; it contains no JSON, which distinguishes it.
        fields = {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return _NO_JSON if _NO_JSON in fields.values() else fields
    return str(value) if type(value).__module__ in ("uuid", "decimal", "pathlib") else _NO_JSON
