"""Execute tool calls with real functions. Each call always gets exactly one result."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from agentobs import tracing
from agentobs.agent.execution.daemon_threads import in_thread
from agentobs.agent.tools.results import Items, error_text, fit, is_quick, render
from agentobs.agent.tools.tool import (
    Bound,
    Function,
    Tool,
    bind,
    check_call,
    check_tools,
    invalid_input_result,
    unknown_tool_result,
)
from agentobs.errors import ReplayEnd, error_kind, warn_once
from agentobs.records.exchanges import ErrorCause, ToolAnswer, ToolOutcome, ToolQuestion
from agentobs.runtime import process
from agentobs.sink import sink
from agentobs.tracing.ambient import keyed
from agentobs.tracing.raised_errors import raised_error

Keep = Callable[[str, str], str]
"""Stores the text of a result, given the ID of its call, and returns the path."""

CLEAN_UP_S = 1.0
"""How long a cancelled async tool may take to clean up before it is abandoned. Our choice."""

STOPPED_MAX = 1_000
"""Maximum number of calls that are remembered because they were stopped before they started. Our choice."""

RECORDING_WAIT_S = 0.25
"""How long a call waits until all earlier records are durable, in seconds. The record of the response that requests the
call must survive a crash of this process, because the effects of a tool may be permanent. Our choice: it usually takes
a millisecond.
"""

R = TypeVar("R")


def live_tools(
    tools: Sequence[Tool], *, keep: Keep | None = None, person: bool = False
) -> LiveTools:
    """Return an object that executes tool calls with these tools.

    Args:
        tools: the tools.
        keep: stores results that are too long. If `keep` is None, the part of a result that the model does not see is
            lost.
        person: whether a person is available for tools that need one.

    Raises:
        UsageError: two tools have the same name or alias, or the settings of a tool contradict each
            other.
    """
    return LiveTools(tools, keep, person)


class LiveTools:
    """Executes tools. A `World` uses its methods."""

    def __init__(self, tools: Sequence[Tool], keep: Keep | None, person: bool) -> None:
        """Create the runner; see `live_tools`."""
        check_tools(tools)
        self._tools = tuple(tools)
        self._by_name = {name: each for each in tools for name in (*each.aliases, each.name)}
        self._keep, self._has_person = keep, person
        self._running: dict[_Call, list[asyncio.Future[None]]] = {}
        self._stopped: dict[_Call, None] = {}
        self._lock = threading.Lock()

    def function(self, name: str) -> Function | None:
        """Return the function of a tool, or None if the tool is unknown."""
        tool = self._by_name.get(name)
        return None if tool is None else tool.function

    def is_mutating(self, name: str) -> bool:
        """Return whether a tool may have effects that cannot be undone; see `World.is_mutating`.

        If that depends on the input, the tool counts as mutating.
        """
        tool = self._by_name.get(name)
        return tool is not None and tool.destructive is not False

    async def run_tool(self, question: ToolQuestion) -> ToolAnswer:
        """Execute one call and return its result; see `World.run_tool`.

        A sync function runs in a thread, with the caller's context. After its timeout, the thread is
        abandoned, because it cannot be stopped.

        Raises:
            ReplayEnd: a replay differs from its recording, in a tool that calls the model.
        """
        tool = self._by_name.get(question.name)
        if tool is None:
            return unknown_tool_result(self._tools, question.name)
        if tool.needs_person and not self._has_person:
            text = (
                f"{tool.name} needs a person to answer, and nobody is available. "
                "Continue without it."
            )
            refused = ErrorCause("refused")
            return ToolAnswer(text, is_error=True, outcome="failed", attempts=0, error=refused)
        with self._registered(_call(question.tool_use_id)) as stop:
            if stop.done():
                text = f"{tool.name} was stopped before it started."
                return ToolAnswer(text, is_error=True, outcome="aborted", attempts=0)
            await sink.settle(RECORDING_WAIT_S)
            for attempts in itertools.count(1):
                try:
                    bound = bind(tool, question.input)
                except ValueError as error:
                    return invalid_input_result(tool, error)
                with keyed(question.tool_use_id):
                    answer = await _Attempt(
                        tool, question.tool_use_id, self.keep_full_result
                    ).answer(bound, stop)
                should_retry = answer.outcome in ("failed", "timeout") and attempts <= tool.retries
                if not should_retry or stop.done():
                    return replace(answer, attempts=attempts)
        raise AssertionError("unreachable: the loop ends with a return")

    def stop_tool(self, tool_use_id: str) -> None:
        """Stop a call, even before it has started. May be called from any thread; see `World.stop_tool`."""
        call = _call(tool_use_id)
        with self._lock:
            stops = list(self._running.get(call, ()))
            if not stops:
                self._stopped[call] = None
                if len(self._stopped) > STOPPED_MAX:
                    del self._stopped[next(iter(self._stopped))]
        for stop in stops:
            with contextlib.suppress(RuntimeError):  # its loop was closed
                stop.get_loop().call_soon_threadsafe(_resolve, stop)

    def keep_full_result(self, tool_use_id: str, text: str) -> str | None:
        """Store the complete text of a result that is too long, and return its path; None if that fails."""
        if self._keep is None:
            return None
        try:
            return str(self._keep(tool_use_id, text))
        except Exception as error:
            warn_once(
                f"the complete result of a tool was not stored: {error}", about="keeping a result"
            )
            return None

    async def check(self, question: ToolQuestion) -> str | None:
        """Return the complaint of the tool's check, which the model will see; None if the call may run.

        A check that fails, or takes longer than the tool's timeout, counts as a complaint.

        Raises:
            ReplayEnd: a replay differs from its recording, in a check that calls the model.
        """
        tool = self._by_name.get(question.name)
        if tool is None or tool.check is None:
            return None
        try:
            call = check_call(tool, bind(tool, question.input))
        except ValueError as error:
            return str(error)
        assert call is not None
        task = asyncio.create_task(_run_to_end(tool.check, call, _check_complaint, _check_failed))
        has_ended = await _wait_for_end(task, None, tool.timeout_s)
        if not has_ended:
            return f"its check did not finish within {tool.timeout_s:g} seconds"
        complaint = _result(task)
        if complaint is None:
            return None
        limited = fit(complaint, tool.result_chars_max, lambda _: None)
        return limited if isinstance(limited, str) else None

    @contextlib.contextmanager
    def _registered(self, call: _Call) -> Iterator[asyncio.Future[None]]:
        """Yield a future that is resolved when the call must stop."""
        stop: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._lock:
            self._running.setdefault(call, []).append(stop)
            if call in self._stopped:
                del self._stopped[call]
                stop.set_result(None)
        try:
            yield stop
        finally:
            with self._lock:
                self._running[call].remove(stop)
                if not self._running[call]:
                    del self._running[call]


_Call = tuple[str | None, str]
"""The lane and the ID of a call, because calls of parallel agents may have the same ID."""


def _call(tool_use_id: str) -> _Call:
    place = tracing.place()
    return (place.lane if place is not None else None), tool_use_id


@dataclass(slots=True)
class _Attempt:
    """One attempt of a call. Converts its return value or exception to a result."""

    tool: Tool
    tool_use_id: str
    keep: Callable[[str, str], str | None]
    is_abandoned: bool = False
    """Whether the attempt has ended for its caller. The thread of the function, which may still be running, reads this
    flag.
    """

    async def answer(self, bound: Bound, stop: asyncio.Future[None]) -> ToolAnswer:
        tool = self.tool
        task = asyncio.create_task(
            _run_to_end(tool.function, bound.call, self.to_result, self.to_error_result)
        )
        stop_if_allowed = None if tool.interrupt == "block" else stop
        try:
            has_ended = await _wait_for_end(task, stop_if_allowed, tool.timeout_s)
        finally:
            self.is_abandoned = True
        if has_ended:
            return _result(task)
        if stop_if_allowed is not None and stop_if_allowed.done():
            return self._abandoned_result(f"{tool.name} was stopped before it finished", "aborted")
        text = f"{tool.name} did not finish within {tool.timeout_s:g} seconds and was abandoned"
        return self._abandoned_result(text, "timeout")

    def to_result(self, value: Any) -> ToolAnswer:
        return ToolAnswer(fit(render(value), self.tool.result_chars_max, self._keep_full_result))

    def to_error_result(self, error: BaseException) -> ToolAnswer:
        text = f"{self.tool.name} failed with {error_text(error)}"
        content = fit(text, self.tool.result_chars_max, self._keep_full_result)
        return ToolAnswer(content, is_error=True, outcome="failed", error=_cause(error))

    def _abandoned_result(self, text: str, outcome: ToolOutcome) -> ToolAnswer:
        note = "" if _is_async(self.tool.function) else " It may still be running."
        return ToolAnswer(f"{text}.{note}", is_error=True, outcome=outcome)

    def _keep_full_result(self, text: str) -> str | None:
        return None if self.is_abandoned else self.keep(self.tool_use_id, text)


@dataclass(frozen=True, slots=True)
class _Pending:
    """A value that a sync function returned and that must be awaited in the event loop."""

    value: Any


@dataclass(frozen=True, slots=True)
class _Divergence:
    """The error of a replay that differs from its recording, raised inside a tool. It is not a failure of the tool."""

    error: ReplayEnd


async def _run_to_end(
    function: Function,
    call: Callable[[], Any],
    on_value: Callable[[Any], R],
    on_error: Callable[[BaseException], R],
) -> R | _Divergence:
    """Run a call to its end, and return the result of `on_value` or `on_error`. Never raises.

    `on_value` runs in a thread as well, unless the value is small, because rendering a large value takes time and may
    run the tool's own code.
    """

    def error_outcome(error: BaseException) -> R | _Divergence:
        if isinstance(error, ReplayEnd):
            return _Divergence(error)
        return on_error(error)

    def run_call() -> R | _Divergence | _Pending:
        try:
            value = call()
            return _Pending(value) if _is_pending(value) else on_value(value)
        except BaseException as error:
            return error_outcome(error)

    try:
        outcome = _Pending(call()) if _is_async(function) else await in_thread(run_call)
        if not isinstance(outcome, _Pending):
            return outcome
        value = await _await_value(outcome.value)
        return on_value(value) if is_quick(value) else await in_thread(partial(on_value, value))
    except Exception as error:
        try:
            return await in_thread(partial(error_outcome, error))
        except BaseException:  # cancelled in the meantime, or no thread is available
            return error_outcome(error)
    except BaseException as error:  # such as SystemExit, which would end the event loop
        return error_outcome(error)


async def _wait_for_end(
    task: asyncio.Task[Any], stop: asyncio.Future[None] | None, timeout_s: float | None
) -> bool:
    """Wait until a task ends, a stop is requested, or a timeout passes.

    Return whether the task has ended. If it has not, cancel it.
    """
    state = process.state(State)
    try:
        waited: set[asyncio.Future[Any]] = {task} if stop is None else {task, stop}
        await asyncio.wait(waited, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        return task.done()
    finally:
        if not task.done():
            state.abandoned.add(task)
            task.add_done_callback(state.abandoned.discard)
            task.cancel()
            await asyncio.wait({task}, timeout=CLEAN_UP_S)


class State:
    """Cancelled tools that are still cleaning up."""

    def __init__(self) -> None:
        self.abandoned: set[asyncio.Task[Any]] = set()
        """Strong references to their tasks, because an event loop holds only weak ones."""


def _result(task: asyncio.Task[R | _Divergence]) -> R:
    outcome = task.result()
    if isinstance(outcome, _Divergence):
        raise outcome.error
    return outcome


def _cause(error: BaseException) -> ErrorCause | None:
    """Return the class and the place of an exception; None if they cannot be read."""
    try:
        return raised_error(error)
    except Exception as failure:  # such as a class whose attributes raise exceptions
        warn_once(f"the place of an error is not recorded: {error_kind(failure)}", about="cause")
        return None


def _is_async(function: Function) -> bool:
    return any(
        inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each)
        for each in (function, getattr(function, "__call__", None))  # noqa: B004
    )


def _is_pending(value: Any) -> bool:
    return inspect.isawaitable(value) or isinstance(value, AsyncIterator)


async def _await_value(value: Any) -> Any:
    if isinstance(value, AsyncIterator):
        items = Items()
        async for item in value:
            if not items.add(item):
                break
        return items.values
    return await value if inspect.isawaitable(value) else value


def _check_complaint(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return f"its check returned a {type(value).__name__} instead of a string or None"


def _check_failed(error: BaseException) -> str:
    return f"its check failed with {error_text(error)}"


def _resolve(stop: asyncio.Future[None]) -> None:
    if not stop.done():
        stop.set_result(None)
