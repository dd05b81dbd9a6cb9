"""Recorded functions: the tools of foreign agents, which take part in recordings and replays.

    @beta_tool
    @agentobs.record_tool
    def lookup(order_id: str) -> str:
        ...

Each call becomes a `ToolExchange`. Its ID is that of the model's tool call, if a response contains one. Otherwise the
ID contains the number of the call among the calls of that name in the lane. LLM requests of the function itself are in
a child lane of the call. A replay decides whether the function runs, and what it returns.
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
from agentobs.determinism.pending_calls import PendingCalls
from agentobs.determinism.values import (
    NotKept,
    arguments_to_json,
    error_from_json,
    error_to_json,
    from_json,
    is_error_json,
    register_type,
    to_json,
)
from agentobs.errors import ReplayEnd, UsageError, error_kind, warn_once
from agentobs.records.canonical_json import canonical
from agentobs.records.exchanges import (
    ErrorCause,
    Place,
    ToolAnswer,
    ToolExchange,
    ToolOutcome,
    ToolQuestion,
    child_lane,
)
from agentobs.runtime import current, process
from agentobs.sink import sink
from agentobs.tracing.raised_errors import raised_error

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class RecordedFunction:
    """A function that is recorded."""

    name: str
    """The name of the tool for the model."""
    is_mutating: bool
    """Whether the function changes something outside the agent. A replay runs such a function only if it is listed."""
    function: Callable[..., Any]
    signature: inspect.Signature


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a recorded function."""

    recorded: RecordedFunction
    place: Place
    question: ToolQuestion
    """The call, represented as a tool call. Its input contains the arguments by name, converted as described in
    `determinism.values`.
    """
    started_ns: int
    """When the call started, in nanoseconds since 1970."""
    started: int
    """When the call started, on the monotonic clock. [ns]"""
    is_counted: bool = False
    """Whether the ID contains the number of the call in the lane, because the model's ID for it is unknown."""


class FunctionAnswerer(Protocol):
    """Decides in a replay what happens when a recorded function is called."""

    def begin(self, call: Call) -> tuple[Call, ToolAnswer | None]:
        """Return a call with its recorded ID, and its recorded answer; the answer is None if the function must run.

        May raise an error of the replay.
        """

    def ended(self, call: Call, answer: ToolAnswer) -> None:
        """Receive the outcome of a function that has run; may raise an error of the replay."""

    def unreadable(self, call: Call, why: str) -> BaseException:
        """Return the exception for a recorded answer that cannot be converted back to a value."""

    async def cancelled(self, call: Call) -> Any:
        """Wait until the caller cancels the call, as recorded; raise an error if the caller does not."""


def _answerer() -> FunctionAnswerer | None:
    found: FunctionAnswerer | None = current().functions
    return found


def _pending_calls() -> PendingCalls:
    """Return the pending tool calls; each runtime, and so each replay, has its own."""
    return current().state(PendingCalls)


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

    Apply the decorator directly to the function, below decorators that turn it into a tool. The return values and
    exceptions of the function, its signature and its docstring do not change.

    Args:
        function: the function, if the decorator is used without arguments.
        name: the name of the tool for the model; default: the name of the function.
        mutating: whether the function changes something outside the agent. A replay runs such a function only if it is
            listed.
        returns: classes of return values to register, so that the values are recorded; see `agentobs.register_type`.

    Raises:
        UsageError: the argument is not a plain function, for example a generator, a class, or a tool made from a
            function.
    """
    for each in (returns,) if isinstance(returns, type) else returns:
        register_type(each)

    def decorate(decorated: Callable[..., Any]) -> Callable[..., Any]:
        _check(decorated)
        tool_name = name or str(getattr(decorated, "__name__", type(decorated).__name__))
        process.listener = _keep_response
        return _wrapped(
            RecordedFunction(tool_name, mutating, decorated, inspect.signature(decorated))
        )

    return decorate if function is None else decorate(function)


def _keep_response(exchange: Any) -> None:
    _pending_calls().add_response(exchange)


def _check(function: Any) -> None:
    """Reject functions that cannot be recorded.

    Raises:
        UsageError: the function cannot be recorded.
    """
    what = ""
    todo = (
        "Put record_tool directly above the function, below the decorators that turn it into a tool"
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
        qualified = getattr(function, "__qualname__", None) or type(function).__qualname__
        raise UsageError(f"{what} cannot be recorded as a tool", where=str(qualified), todo=todo)


def _wrapped(recorded: RecordedFunction) -> Callable[..., Any]:
    function = recorded.function
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - the check is whether `__call__` is async
    ):

        async def run_async(*args: Any, **kwargs: Any) -> Any:
            started = _begin(recorded, args, kwargs)
            if started is None:
                return await function(*args, **kwargs)
            call, answer = _recorded_answer(started)
            if answer is None:
                with _running(call) as running:
                    running.value = await function(*args, **kwargs)
                return running.value
            if answer.outcome == "aborted" and (answerer := _answerer()) is not None:
                return await answerer.cancelled(call)
            return _value(call, answer)

        return functools.wraps(function)(run_async)

    def run(*args: Any, **kwargs: Any) -> Any:
        started = _begin(recorded, args, kwargs)
        if started is None:
            return function(*args, **kwargs)
        call, answer = _recorded_answer(started)
        if answer is None:
            with _running(call) as running:
                running.value = function(*args, **kwargs)
            return running.value
        return _value(call, answer)

    return functools.wraps(function)(run)


def _begin(
    recorded: RecordedFunction, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Call | None:
    """Return a call that starts; None if it is not recorded here.

    The agent loop of agentobs records its calls itself. A call outside every session is not recorded either.
    """
    try:
        here = tracing.place() or (process.place_outside and process.place_outside())
        if here is None or here.turn is not None:
            return None
        try:
            bound = recorded.signature.bind(*args, **kwargs)
        except TypeError:
            return None
        arguments = _arguments_by_name(bound, recorded.signature)
        found = _pending_calls().take(
            here, recorded.name, functools.partial(_matches_input, recorded, arguments)
        )
        lane, tool_use_id = found or (here.lane, _pending_calls().counted_id(here, recorded.name))
        question = ToolQuestion(tool_use_id, recorded.name, arguments_to_json(arguments))
        here = dataclasses.replace(here, lane=lane)
        return Call(recorded, here, question, world.now(), world.monotonic(), found is None)
    except Exception as error:
        _warn(error)
        return None


def _recorded_answer(call: Call) -> tuple[Call, ToolAnswer | None]:
    """Return a call and, in a replay, its recorded answer; the answer is None if the function must run."""
    answerer = _answerer()
    if answerer is None:
        return call, None
    call, answer = answerer.begin(call)
    if answer is not None:
        _emit(call, answer)
    return call, answer


def _value(call: Call, answer: ToolAnswer) -> Any:
    """Return the value of a recorded answer, or raise the recorded exception."""
    try:
        if is_error_json(answer.content):
            module = sys.modules.get(str(getattr(call.recorded.function, "__module__", "")))
            error = error_from_json(answer.content, () if module is None else (module,))
        else:
            return from_json(answer.content)
    except NotKept as unknown:
        answerer = _answerer()
        assert answerer is not None
        raise answerer.unreadable(call, str(unknown)) from unknown
    raise error


class _Running:
    """A function that is running."""

    value: Any = None
    """The return value, once the function has returned."""


@contextlib.contextmanager
def _running(call: Call) -> Iterator[_Running]:
    """Enter the child lane of a call while its function runs, and emit the outcome."""
    running = _Running()
    lane = child_lane(call.place.lane, call.question.tool_use_id)
    inside = dataclasses.replace(call.place, lane=lane, query_source="sub_agent")
    try:
        with tracing.at(inside):
            yield running
    except ReplayEnd:
        raise
    except BaseException as error:
        is_failure = isinstance(error, Exception | SystemExit)
        outcome: ToolOutcome = "failed" if is_failure else "aborted"
        _report(call, error_to_json(error), outcome, _cause(error) if is_failure else None)
        raise
    _report(call, to_json(running.value), "executed")


def _cause(error: BaseException) -> ErrorCause | None:
    """Return the class and the place of an exception; None if they cannot be read."""
    try:
        return raised_error(error)
    except Exception as failure:
        _warn(failure)
        return None


def _report(
    call: Call, content: Any, outcome: ToolOutcome, error: ErrorCause | None = None
) -> None:
    answer = ToolAnswer(content, is_error=outcome != "executed", outcome=outcome, error=error)
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
                tool=call.recorded.name,
                executed_input=call.question.input,
                is_function=True,
            )
        )
    except Exception as error:
        _warn(error)


def _warn(error: Exception) -> None:
    with contextlib.suppress(Exception):  # describing the error may raise an exception
        text = f"a tool call was not recorded: {error_kind(error)}. The agent continues."
        warn_once(text, about=f"record_tool {type(error).__name__}")


def _arguments_by_name(
    bound: inspect.BoundArguments, signature: inspect.Signature
) -> dict[str, Any]:
    """Return arguments by name; keyword arguments in `**kwargs` are not nested."""
    arguments = dict(bound.arguments)
    for name, parameter in signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            arguments = {**arguments.pop(name, {}), **arguments}
        elif parameter.kind is inspect.Parameter.VAR_POSITIONAL and name in arguments:
            arguments[name] = list(arguments[name])
    return arguments


def _matches_input(
    recorded: RecordedFunction, arguments: Mapping[str, Any], tool_input: Any
) -> bool:
    """Return whether the arguments of a function match the input of a tool call.

    The arguments must contain the complete input. All other arguments must be default values or objects of the
    framework. Alternatively, one argument is the complete input.
    """
    if not isinstance(tool_input, dict):
        return False
    shown = {name: _to_json(value) for name, value in arguments.items()}
    if all(name in shown and _is_equal(shown[name], value) for name, value in tool_input.items()):
        extra = shown.keys() - tool_input.keys()
        return all(_is_extra(recorded, name, arguments[name]) for name in extra)
    return any(isinstance(value, dict) and _is_equal(value, tool_input) for value in shown.values())


def _is_extra(recorded: RecordedFunction, name: str, value: Any) -> bool:
    parameter = recorded.signature.parameters.get(name)
    is_default = parameter is not None and value is parameter.default
    return is_default or _to_json(value) is _NOT_JSON or value is None


class _NotJson:
    """The type of `_NOT_JSON`, which replaces a value that cannot be part of a tool input."""


_NOT_JSON = _NotJson()


def _is_equal(shown: Any, value: Any) -> bool:
    if shown is _NOT_JSON:
        return False
    return canonical(shown) == canonical(value) or str(shown) == str(value)


def _to_json(value: Any) -> Any:
    """Return a value as the JSON from which a framework created it; `_NOT_JSON` if there is no such JSON."""
    match value:
        case enum.Enum():
            return value.value
        case None | str() | bool() | int() | float():
            return value
        case dict():
            return {str(key): _to_json(inner) for key, inner in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_to_json(inner) for inner in value]
    for method in ("model_dump", "isoformat"):
        if callable(found := getattr(value, method, None)) and not isinstance(value, type):
            return found(mode="json") if method == "model_dump" else found()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        # The context object of a framework may be a dataclass as well, but unlike an input its fields are not JSON.
        fields = {f.name: _to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return _NOT_JSON if _NOT_JSON in fields.values() else fields
    return str(value) if type(value).__module__ in ("uuid", "decimal", "pathlib") else _NOT_JSON
