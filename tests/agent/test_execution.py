"""Tool execution: every call gets one result of limited size, and no call hangs."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import subprocess
import sys
import threading
import tracemalloc
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import anthropic
import httpx2
import pytest

from agentobs.agent.execution import daemon_threads, tool_runner
from agentobs.agent.execution.tool_runner import LiveTools, live_tools
from agentobs.agent.tools.results import ITEMS_MAX
from agentobs.agent.tools.tool import Tool, declared, tool
from agentobs.errors import ReplayEnd, UsageError
from agentobs.records.exchanges import ToolAnswer, ToolQuestion
from agentobs.runtime import process


def tool_question(name: str, call: str = "call", **value: Any) -> ToolQuestion:
    return ToolQuestion(call, name, value)


def answer(question: ToolQuestion, *tools: Tool, **world: Any) -> ToolAnswer:
    async def run_call() -> ToolAnswer:
        return await live_tools(tools, **world).run_tool(question)

    return asyncio.run(run_call())


def failed(text: str, **more: Any) -> ToolAnswer:
    return ToolAnswer(text, is_error=True, **{"outcome": "failed", **more})


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Return an event that is set at the end of the test, so that a sync function that waits for it hangs until
    then.
    """
    released = threading.Event()
    yield released
    released.set()


def test_an_unknown_tool() -> None:
    """The result for an unknown tool lists the available names; the former name of a tool is known."""

    @tool(aliases=["peek"])
    def look() -> str:
        return "seen"

    assert answer(tool_question("lock"), look) == ToolAnswer(
        "There is no tool named 'lock'. The tools are: look.", is_error=True, outcome="unknown"
    )
    assert answer(tool_question("peek"), look) == ToolAnswer("seen")


def test_invalid_input() -> None:
    """The result for invalid input states what to fix, and the function is not called."""

    @tool
    def look(where: str) -> None:
        raise AssertionError("the tool ran")

    assert answer(tool_question("look", were=1), look) == ToolAnswer(
        "The input of look is invalid:\n"
        "where: required, but missing (expected type: string)\n"
        "were: there is no argument with this name; the arguments are: where",
        is_error=True,
        outcome="invalid",
    )
    cut = ToolQuestion("call", "look", '{"where": ')
    assert answer(cut, look).content == (
        "The input of look is invalid:\nthe input is not a JSON object; perhaps it was cut off"
    )


def test_sync_and_async_functions_return_results() -> None:
    """Functions, methods, partials, callable objects and generators all return results, whether they are sync
    or async.
    """

    @tool
    def plain() -> list[int]:
        return [1, 2]

    @tool
    async def waits() -> list[int]:
        await asyncio.sleep(0)
        return [1, 2]

    @tool
    def yields() -> Iterator[int]:
        yield from (1, 2)

    @tool
    async def yields_later() -> AsyncIterator[int]:
        for number in (1, 2):
            await asyncio.sleep(0)
            yield number

    class Object:
        async def __call__(self) -> list[int]:
            return [1, 2]

        def method(self) -> list[int]:
            return [1, 2]

    async def later() -> list[int]:
        return [1, 2]

    def promises() -> Awaitable[list[int]]:
        return later()

    tools = [
        plain,
        waits,
        yields,
        yields_later,
        tool(Object().method),
        tool(name="object")(Object()),
        tool(promises),
    ]
    for each in tools:
        assert answer(tool_question(each.name), *tools) == ToolAnswer("[1,2]")


def test_an_endless_generator_is_truncated() -> None:
    """If a tool is an endless async generator, the result contains its first items."""

    @tool
    async def count() -> AsyncIterator[int]:
        while True:
            yield 0

    found = answer(tool_question("count"), count, keep=lambda _, text: str(text.count(",")))
    assert f"is in {ITEMS_MAX}]" in found.content


class Custom(BaseException):
    pass


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


RAISED = [
    (FileNotFoundError("no such file: a.txt"), "FileNotFoundError: no such file: a.txt"),
    (anthropic.APITimeoutError(httpx2.Request("POST", "http://x")), "APITimeoutError: "),
    (TimeoutError("the host is slow"), "TimeoutError: the host is slow"),
    (SystemExit(3), "SystemExit: 3"),
    (KeyboardInterrupt(), "KeyboardInterrupt"),
    (GeneratorExit(), "GeneratorExit"),
    (asyncio.CancelledError(), "CancelledError"),
    (StopIteration("over"), "StopIteration: over"),
    (StopAsyncIteration(), "StopAsyncIteration"),
    (Custom("mine"), "Custom: mine"),
    (Mute(), "Mute (its message is unavailable: str() raised RuntimeError)"),
    (MemoryError(), "MemoryError"),
    (RecursionError("too deep"), "RecursionError: too deep"),
    (ValueError("caf\udce9"), "ValueError: caf?"),
]


@pytest.mark.parametrize(
    ("error", "text"), RAISED, ids=[type(error).__name__ for error, _ in RAISED]
)
@pytest.mark.parametrize("is_async", [False, True])
def test_any_exception_is_a_failed_result(error: BaseException, text: str, is_async: bool) -> None:
    """An exception of any type becomes one failed result with its name, and the event loop keeps running."""

    def look() -> None:
        raise error

    async def look_later() -> None:
        raise error

    tested_tool = tool(name="look")(look_later if is_async else look)
    if is_async and isinstance(error, StopIteration):  # PEP 479
        text = "RuntimeError: coroutine raised StopIteration"
    found = answer(tool_question("look"), tested_tool)
    assert found.content.startswith(f"look failed with {text}")
    assert (found.outcome, found.is_error) == ("failed", True)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_long_error_is_truncated(is_async: bool) -> None:
    """If an exception has 10 MB of text, the model gets the start and the end, and the complete text is stored like a
    result.
    """
    kept: list[str] = []

    def keep(tool_use_id: str, text: str) -> str:
        kept.append(text)
        return f"/kept/{tool_use_id}"

    def fail() -> None:
        raise ValueError("x" * 10_000_000)

    async def fail_later() -> None:
        fail()

    tested_tool = tool(name="fail")(fail_later if is_async else fail)
    found = answer(tool_question("fail"), tested_tool, keep=keep)
    assert found.outcome == "failed"
    assert found.content.startswith("fail failed with ValueError: xxxx")
    assert "The complete result is in /kept/call]" in found.content
    assert len(found.content) <= 4_000
    assert [len(text) for text in kept] == [10_000_000 + len("fail failed with ValueError: ")]


class Differs(anthropic.AnthropicError, ReplayEnd):
    """Simulates a replay that differs from its recording."""


@pytest.mark.parametrize("is_async", [False, True])
def test_a_divergence_is_not_a_tool_failure(is_async: bool) -> None:
    """A divergence propagates unchanged, and the call is not retried."""
    started: list[int] = []

    def raise_divergence() -> None:
        started.append(1)
        raise Differs("the question differs")

    async def raise_divergence_later() -> None:
        raise_divergence()

    with pytest.raises(Differs):
        answer(
            tool_question("ask"),
            tool(name="ask", retries=3)(raise_divergence_later if is_async else raise_divergence),
        )
    assert started == [1]


def test_a_tool_that_times_out(gate: threading.Event) -> None:
    """After its timeout a call is abandoned; the result states that a sync function may still be running."""

    @tool(timeout_s=0.01)
    async def wait() -> None:
        await asyncio.Event().wait()

    @tool(timeout_s=0.01)
    def hang() -> None:
        gate.wait()

    @tool(timeout_s=0.01)
    def yields() -> Iterator[int]:
        gate.wait()
        yield 1

    assert answer(tool_question("wait"), wait) == failed(
        "wait did not finish within 0.01 seconds and was abandoned.", outcome="timeout"
    )
    for tested_tool in (hang, yields):
        assert answer(tool_question(tested_tool.name), tested_tool) == failed(
            f"{tested_tool.name} did not finish within 0.01 seconds and was abandoned. "
            "It may still be running.",
            outcome="timeout",
        )


def test_a_tool_that_ignores_cancellation_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """An async tool that ignores cancellation does not delay its result."""
    monkeypatch.setattr(tool_runner, "CLEAN_UP_S", 0.01)
    released = asyncio.Event()

    @tool(timeout_s=0.01)
    async def cling() -> None:
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                continue

    async def run_call() -> ToolAnswer:
        found = await live_tools([cling]).run_tool(tool_question("cling"))
        released.set()
        return found

    assert asyncio.run(run_call()).outcome == "timeout"


def test_threads_that_never_return_are_limited(
    gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the maximum number of calls has been abandoned, further calls fail immediately until an abandoned call
    ends.
    """
    monkeypatch.setattr(daemon_threads, "ABANDONED_MAX", 3)

    @tool(timeout_s=0.01)
    def hang() -> None:
        gate.wait()

    async def run_calls() -> list[str]:
        live = live_tools([hang])
        while process.state(daemon_threads.State).abandoned:  # threads of other tests may still run
            await asyncio.sleep(0.001)
        outcomes = [(await live.run_tool(tool_question("hang"))).outcome for _ in range(4)]
        gate.set()
        while process.state(daemon_threads.State).abandoned == daemon_threads.ABANDONED_MAX:
            await asyncio.sleep(0.001)
        return [*outcomes, (await live.run_tool(tool_question("hang"))).outcome]

    assert asyncio.run(run_calls()) == ["timeout"] * 3 + ["failed", "executed"]


@pytest.mark.slow
def test_a_forked_process_starts_new_threads() -> None:
    """In a forked process the first call starts a new thread, because the threads of the parent process do not survive
    the fork.
    """
    script = """
import asyncio, os, sys
from agentobs.agent.execution.daemon_threads import in_thread

asyncio.run(in_thread(os.getpid))
child = os.fork()
if child == 0:
    os._exit(asyncio.run(in_thread(lambda: 7)))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=True
    )
    assert found.stdout == "7\n"


def test_context_variables_reach_sync_functions() -> None:
    """A sync function sees the caller's context variables, and its own changes do not leave its thread."""
    variable = contextvars.ContextVar("variable", default="unset")

    @tool
    def look() -> str:
        before = variable.get()
        variable.set("changed")
        return before

    async def run_call() -> tuple[Any, str]:
        variable.set("set")
        found = await live_tools([look]).run_tool(tool_question("look"))
        return found.content, variable.get()

    assert asyncio.run(run_call()) == ("set", "set")


@pytest.mark.parametrize("is_async", [False, True])
def test_failures_and_timeouts_are_retried(is_async: bool, gate: threading.Event) -> None:
    """If a tool allows retries, a call that fails or times out is run again with the same input."""
    seen: list[Any] = []

    def flaky(data: Any) -> str:
        seen.append(list(data))
        data.append("changed")
        if len(seen) < 3:
            raise OSError("not yet")
        return "done"

    async def flaky_later(data: Any) -> str:
        return flaky(data)

    tested_tool = tool(name="flaky", retries=2)(flaky_later if is_async else flaky)
    assert answer(tool_question("flaky", data=[1]), tested_tool) == ToolAnswer("done", attempts=3)
    assert seen == [[1]] * 3
    seen.clear()
    fewer = tool(name="flaky", retries=1)(tested_tool.function)
    assert answer(tool_question("flaky", data=[1]), fewer) == failed(
        "flaky failed with OSError: not yet", attempts=2
    )

    @tool(retries=2, timeout_s=0.01)
    def hang() -> None:
        gate.wait()

    assert (
        answer(tool_question("hang"), hang).outcome,
        answer(tool_question("hang"), hang).attempts,
    ) == (
        "timeout",
        3,
    )


def test_only_failures_are_retried() -> None:
    """Neither a call with invalid input, nor a call of a tool that allows no retries, is retried."""
    started: list[int] = []

    @tool(retries=5)
    def look(where: str) -> None: ...

    @tool
    def fail() -> None:
        started.append(1)
        raise OSError

    assert answer(tool_question("look"), look).attempts == 1
    assert answer(tool_question("fail"), fail).attempts == 1
    assert started == [1]


def test_a_tool_that_needs_a_person_fails_without_a_person() -> None:
    """Without a person, a tool that needs one is not started, and its result asks the model to continue without it."""

    @tool(needs_person=True)
    def confirm() -> str:
        return "yes"

    assert answer(tool_question("confirm"), confirm) == failed(
        "confirm needs a person to answer, and nobody is available. Continue without it.",
        attempts=0,
    )
    assert answer(tool_question("confirm"), confirm, person=True) == ToolAnswer("yes")


def stopped(
    tested_tool: Tool,
    started: asyncio.Event | threading.Event,
    then: Callable[[], None] = lambda: None,
) -> ToolAnswer:
    """Stop a call as soon as it has started, then call `then`, and return the answer of the call."""

    async def stop_call() -> ToolAnswer:
        live = live_tools([tested_tool])
        task = asyncio.create_task(live.run_tool(tool_question(tested_tool.name)))
        while not started.is_set():
            await asyncio.sleep(0)
        live.stop_tool("call")
        await asyncio.sleep(0.01)
        then()
        return await task

    return asyncio.run(stop_call())


def test_a_running_call_is_stopped(gate: threading.Event) -> None:
    """If a call is stopped, an async tool is cancelled and can clean up; a sync tool is abandoned, and the result is
    returned immediately.
    """
    trail: list[str] = []
    started, thread_started = asyncio.Event(), threading.Event()

    @tool(timeout_s=None, retries=3)
    async def wait() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            trail.append("cleaned up")

    @tool(timeout_s=None, retries=3)
    def hang() -> None:
        thread_started.set()
        gate.wait()

    assert stopped(wait, started) == failed(
        "wait was stopped before it finished.", outcome="aborted"
    )
    assert trail == ["cleaned up"]
    assert stopped(hang, thread_started) == failed(
        "hang was stopped before it finished. It may still be running.", outcome="aborted"
    )


def test_a_call_that_blocks_an_abort_finishes(gate: threading.Event) -> None:
    """If a call that must not be interrupted is stopped, it finishes and its result is used."""
    started, thread_started, may_finish = asyncio.Event(), threading.Event(), asyncio.Event()

    @tool(interrupt="block")
    async def write() -> str:
        started.set()
        await may_finish.wait()
        return "written"

    @tool(interrupt="block")
    def save() -> str:
        thread_started.set()
        gate.wait()
        return "saved"

    assert stopped(write, started, may_finish.set) == ToolAnswer("written")
    assert stopped(save, thread_started, gate.set) == ToolAnswer("saved")


@pytest.mark.parametrize("interrupt", ["cancel", "block"])
def test_a_call_that_was_stopped_before_its_start_is_not_run(interrupt: Any) -> None:
    """If a call is stopped before its start, it does not run; other calls, and a later call with the same ID, do."""

    @tool(interrupt=interrupt)
    def look() -> str:
        return "seen"

    async def run_calls() -> list[ToolAnswer]:
        live = live_tools([look])
        live.stop_tool("early")
        return [
            await live.run_tool(tool_question("look", "other")),
            await live.run_tool(tool_question("look", "early")),
            await live.run_tool(tool_question("look", "early")),
        ]

    assert asyncio.run(run_calls()) == [
        ToolAnswer("seen"),
        failed("look was stopped before it started.", outcome="aborted", attempts=0),
        ToolAnswer("seen"),
    ]


def test_a_call_may_be_stopped_from_any_thread() -> None:
    """A call can be stopped from another thread; stopping a call that has ended has no effect."""

    @tool(timeout_s=None)
    async def wait() -> None:
        threading.Thread(target=live.stop_tool, args=["call"]).start()
        await asyncio.Event().wait()

    live = live_tools([wait])
    assert asyncio.run(live.run_tool(tool_question("wait"))).outcome == "aborted"
    live.stop_tool("call")


def test_cancelling_the_caller_cancels_the_tool() -> None:
    """If the caller is cancelled, the tool is cancelled and can clean up before the caller ends."""
    trail: list[str] = []

    async def cancel_caller() -> None:
        started = asyncio.Event()

        @tool
        async def wait() -> None:
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                trail.append("cleaned up")

        task = asyncio.create_task(live_tools([wait]).run_tool(tool_question("wait")))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert trail == ["cleaned up"]

    asyncio.run(cancel_caller())


def complaint_about(tested_tool: Tool, **value: Any) -> str | None:
    async def run_check() -> str | None:
        return await live_tools([tested_tool]).check(tool_question(tested_tool.name, **value))

    return asyncio.run(run_check())


def test_a_check_returns_a_complaint(gate: threading.Event) -> None:
    """A sync or async check gets the arguments that it declares, with their defaults, and the text that it returns is
    the complaint.
    """

    def no_dots(path: str) -> str | None:
        return "path: must not hold two dots" if ".." in path else None

    async def no_dots_later(path: str, depth: int) -> str | None:
        return no_dots(path) if depth == 1 else "depth: must be 1"

    async def complete(value: dict[str, Any]) -> str | None:
        return None if value else "must not be empty"

    def look(path: str, depth: int = 1) -> None:
        raise AssertionError("the tool ran")

    for check in (no_dots, no_dots_later):
        tested_tool = tool(check=check)(look)
        assert complaint_about(tested_tool, path="a/b") is None
        assert complaint_about(tested_tool, path="../b") == "path: must not hold two dots"
    assert complaint_about(tool(check=no_dots_later)(look), path="a", depth=2) == "depth: must be 1"
    assert complaint_about(declared({"name": "any"}, look, check=complete)) == "must not be empty"
    assert complaint_about(tool(look), path="..") is None
    assert complaint_about(tested_tool) == "path: required, but missing (expected type: string)"


def test_a_failing_check_is_a_complaint(gate: threading.Event) -> None:
    """If a check raises, hangs, or does not return text or None, the call is rejected; a divergence propagates."""

    def look(path: str) -> None: ...

    def raises(path: str) -> None:
        raise SystemExit(path)

    def answers(path: str) -> bool:
        return True

    def hangs(path: str) -> None:
        gate.wait()

    def differs(path: str) -> None:
        raise Differs("differs")

    def long(path: str) -> str:
        return "x" * 1_000_000

    def checked(check: Callable[..., Any]) -> str | None:
        return complaint_about(tool(check=check, timeout_s=0.01)(look), path="a")

    assert (
        complaint_about(tool(check=raises)(look), path="a") == "its check failed with SystemExit: a"
    )
    assert complaint_about(tool(check=answers)(look), path="a") == (
        "its check returned a bool instead of a string or None"
    )
    assert checked(hangs) == "its check did not finish within 0.01 seconds"
    assert len(complaint_about(tool(check=long)(look), path="a") or "") <= 50_000
    with pytest.raises(Differs):
        complaint_about(tool(check=differs)(look), path="a")


def test_a_long_result_is_stored_under_the_id_of_its_call() -> None:
    """A result that is too long is passed to `keep` with the ID of its call and in the context of the caller."""
    variable = contextvars.ContextVar("variable", default="unset")
    kept: list[tuple[str, str, str]] = []

    def keep(tool_use_id: str, text: str) -> str:
        kept.append((tool_use_id, text, variable.get()))
        return "/kept"

    @tool(result_chars_max=10_000)
    async def look(size: int) -> str:
        return "x" * size

    async def run_calls() -> list[ToolAnswer]:
        variable.set("set")
        live = live_tools([look], keep=keep)
        return [await live.run_tool(tool_question("look", size=size)) for size in (10_000, 10_001)]

    complete, cut = asyncio.run(run_calls())
    assert complete.content == "x" * 10_000
    assert "of 10,001 characters were omitted. The complete result is in /kept]" in cut.content
    assert not cut.is_error
    assert kept == [("call", "x" * 10_001, "set")]


def test_a_result_that_cannot_be_stored_is_truncated() -> None:
    """If a long result cannot be stored, it is truncated, the run continues, and the user is warned once."""

    def keep(tool_use_id: str, text: str) -> str:
        raise OSError("no space left")

    @tool
    def look() -> str:
        return "x" * 100_000

    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        found = answer(tool_question("look"), look, keep=keep)
    assert "were omitted and not stored" in found.content
    assert not found.is_error


def test_results_of_abandoned_calls_are_dropped(gate: threading.Event) -> None:
    """If an abandoned call returns a long result later, it is not stored, because nothing would refer to the file."""
    kept: list[str] = []
    ended = threading.Event()

    class Result:
        def __str__(self) -> str:
            return "x" * 100_000

        def __del__(self) -> None:
            ended.set()

    @tool(timeout_s=0.01)
    def hang() -> Result:
        gate.wait()
        return Result()

    def keep(tool_use_id: str, text: str) -> str:
        kept.append(text)
        return "/kept"

    assert answer(tool_question("hang"), hang, keep=keep).outcome == "timeout"
    gate.set()
    assert ended.wait(30)
    assert kept == []


def test_two_tools_with_the_same_name_are_rejected() -> None:
    """Two tools with the same name are rejected before anything runs."""
    with pytest.raises(UsageError, match="is already the name of the tool look"):
        LiveTools([tool(name="look")(nothing), tool(name="look")(nothing)], None, False)


def nothing() -> None: ...


def test_a_tool_that_prints_100_mb() -> None:
    """The output that a tool prints is not captured; its result is the return value."""

    @tool
    def talk() -> str:
        for _ in range(100):
            print("x" * 1_000_000)
        return "done"

    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        assert answer(tool_question("talk"), talk) == ToolAnswer("done")


class Wide:
    def __repr__(self) -> str:
        return "x" * 100_000_000


@pytest.mark.parametrize(
    ("make", "most_mb"),
    [(lambda: "x" * 100_000_000, 110), (lambda: b"x" * 100_000_000, 210), (Wide, 110)],
    ids=["str", "bytes", "repr"],
)
def test_a_result_of_100_mb(make: Callable[[], object], most_mb: int) -> None:
    """The model gets 50,000 characters of a 100 MB result, which is not copied, except for bytes, which are decoded
    once.
    """
    tracemalloc.start()
    try:
        found = answer(tool_question("wide"), tool(name="wide")(make))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.outcome == "executed"
    assert 49_000 < len(found.content) <= 50_000
    assert peak < most_mb * 1_000_000


@pytest.mark.slow
def test_the_interpreter_ends_although_a_tool_hangs() -> None:
    """Neither the event loop nor the interpreter waits for a sync function that never returns."""
    script = """
import asyncio, threading
from agentobs.agent.execution.tool_runner import live_tools
from agentobs.agent.tools.tool import tool
from agentobs.records.exchanges import ToolQuestion

@tool(timeout_s=0.01)
def hang():
    threading.Event().wait()

live = live_tools([hang])
print(asyncio.run(live.run_tool(ToolQuestion("call", "hang", {}))).outcome)
"""
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=True
    )
    assert (found.stdout, found.stderr) == ("timeout\n", "")
