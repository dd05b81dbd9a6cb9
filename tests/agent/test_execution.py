"""Tool execution: every call gets one clear result of limited size, and nothing hangs."""

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
from agentobs.errors import ReplaySays, UsageError
from agentobs.records.exchanges import ToolAnswer, ToolQuestion
from agentobs.runtime import process


def asked(name: str, call: str = "call", **value: Any) -> ToolQuestion:
    return ToolQuestion(call, name, value)


def answer(question: ToolQuestion, *tools: Tool, **world: Any) -> ToolAnswer:
    async def ask() -> ToolAnswer:
        return await live_tools(tools, **world).run_tool(question)

    return asyncio.run(ask())


def failed(text: str, **more: Any) -> ToolAnswer:
    return ToolAnswer(text, is_error=True, **{"outcome": "failed", **more})


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Held until the test ends: a sync function that waits for it does not return before."""
    held = threading.Event()
    yield held
    held.set()


def test_a_tool_that_does_not_exist() -> None:
    """The result for an unknown tool lists the available names; a former name is known."""

    @tool(aliases=["peek"])
    def look() -> str:
        return "seen"

    assert answer(asked("lock"), look) == ToolAnswer(
        "There is no tool named 'lock'. The tools are: look.", is_error=True, outcome="unknown"
    )
    assert answer(asked("peek"), look) == ToolAnswer("seen")


def test_input_that_does_not_fit() -> None:
    """The result for invalid input says what to fix, and the function is not called."""

    @tool
    def look(where: str) -> None:
        raise AssertionError("must not run")

    assert answer(asked("look", were=1), look) == ToolAnswer(
        "The input of look does not fit:\n"
        "where: required, but not given (a value of type string)\n"
        "were: there is no argument of this name; there are: where",
        is_error=True,
        outcome="invalid",
    )
    cut = ToolQuestion("call", "look", '{"where": ')
    assert answer(cut, look).content == (
        "The input of look does not fit:\nthe input is not a JSON object; perhaps it was cut"
    )


def test_plain_and_async_functions_answer_alike() -> None:
    """Functions, methods, partials, callable objects and generators, sync and async, all return results."""

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
        assert answer(asked(each.name), *tools) == ToolAnswer("[1,2]")


def test_an_endless_generator_is_read_so_far() -> None:
    """An endless async generator yields its first items."""

    @tool
    async def count() -> AsyncIterator[int]:
        while True:
            yield 0

    found = answer(asked("count"), count, keep=lambda _, text: str(text.count(",")))
    assert f"lies in {ITEMS_MAX}]" in found.content


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
    (Mute(), "Mute (its text failed with RuntimeError)"),
    (MemoryError(), "MemoryError"),
    (RecursionError("too deep"), "RecursionError: too deep"),
    (ValueError("caf\udce9"), "ValueError: caf?"),
]


@pytest.mark.parametrize(
    ("error", "text"), RAISED, ids=[type(error).__name__ for error, _ in RAISED]
)
@pytest.mark.parametrize("is_async", [False, True])
def test_whatever_a_tool_raises_is_its_answer(
    error: BaseException, text: str, is_async: bool
) -> None:
    """An exception of any kind becomes one failed result that names it, and the event loop survives."""

    def look() -> None:
        raise error

    async def look_later() -> None:
        raise error

    made = tool(name="look")(look_later if is_async else look)
    if is_async and isinstance(error, StopIteration):  # PEP 479
        text = "RuntimeError: coroutine raised StopIteration"
    found = answer(asked("look"), made)
    assert found.content.startswith(f"look failed with {text}")
    assert (found.outcome, found.is_error) == ("failed", True)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_long_error_is_bounded(is_async: bool) -> None:
    """Of an exception with 10 MB of text the model sees the ends; the full text is stored like a result."""
    kept: list[str] = []

    def keep(tool_use_id: str, text: str) -> str:
        kept.append(text)
        return f"/kept/{tool_use_id}"

    def fail() -> None:
        raise ValueError("x" * 10_000_000)

    async def fail_later() -> None:
        fail()

    made = tool(name="fail")(fail_later if is_async else fail)
    found = answer(asked("fail"), made, keep=keep)
    assert found.outcome == "failed"
    assert found.content.startswith("fail failed with ValueError: xxxx")
    assert "The whole result lies in /kept/call]" in found.content
    assert len(found.content) <= 4_000
    assert [len(text) for text in kept] == [10_000_000 + len("fail failed with ValueError: ")]


class Differs(anthropic.AnthropicError, ReplaySays):
    """Simulates a replay that differs from its recording."""


@pytest.mark.parametrize("is_async", [False, True])
def test_a_divergence_is_not_the_tools_failure(is_async: bool) -> None:
    """A divergence propagates unchanged, and there is no retry."""
    begun: list[int] = []

    def ask() -> None:
        begun.append(1)
        raise Differs("the question differs")

    async def ask_later() -> None:
        ask()

    with pytest.raises(Differs):
        answer(asked("ask"), tool(name="ask", retries=3)(ask_later if is_async else ask))
    assert begun == [1]


def test_a_tool_that_is_too_slow(gate: threading.Event) -> None:
    """A call is abandoned after its timeout; a sync function may continue, and the model is told so."""

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

    assert answer(asked("wait"), wait) == failed(
        "wait did not finish within 0.01 seconds and was given up.", outcome="timeout"
    )
    for made in (hang, yields):
        assert answer(asked(made.name), made) == failed(
            f"{made.name} did not finish within 0.01 seconds and was given up. "
            "It may still be running.",
            outcome="timeout",
        )


def test_a_tool_that_will_not_be_cancelled_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """An async tool that ignores cancellation does not delay its result."""
    monkeypatch.setattr(tool_runner, "CLEAN_UP_S", 0.01)
    held = asyncio.Event()

    @tool(timeout_s=0.01)
    async def cling() -> None:
        while not held.is_set():
            try:
                await held.wait()
            except asyncio.CancelledError:
                continue

    async def ask() -> ToolAnswer:
        found = await live_tools([cling]).run_tool(asked("cling"))
        held.set()
        return found

    assert asyncio.run(ask()).outcome == "timeout"


def test_threads_that_never_return_are_few(
    gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of abandoned calls is limited; beyond it a call fails immediately, until some have ended."""
    monkeypatch.setattr(daemon_threads, "LEFT_MAX", 3)

    @tool(timeout_s=0.01)
    def hang() -> None:
        gate.wait()

    async def ask() -> list[str]:
        live = live_tools([hang])
        while process.part(daemon_threads.State).left:  # from other tests
            await asyncio.sleep(0.001)
        outcomes = [(await live.run_tool(asked("hang"))).outcome for _ in range(4)]
        gate.set()
        while process.part(daemon_threads.State).left == daemon_threads.LEFT_MAX:
            await asyncio.sleep(0.001)
        return [*outcomes, (await live.run_tool(asked("hang"))).outcome]

    assert asyncio.run(ask()) == ["timeout"] * 3 + ["failed", "executed"]


def test_a_forked_process_has_threads_of_its_own() -> None:
    """Threads do not survive a fork: the child's first call does not wait for a thread of the parent."""
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


def test_context_reaches_plain_functions() -> None:
    """A sync function in its thread sees the caller's context variables; its own changes stay local."""
    variable = contextvars.ContextVar("variable", default="unset")

    @tool
    def look() -> str:
        before = variable.get()
        variable.set("changed")
        return before

    async def ask() -> tuple[Any, str]:
        variable.set("set")
        found = await live_tools([look]).run_tool(asked("look"))
        return found.content, variable.get()

    assert asyncio.run(ask()) == ("set", "set")


@pytest.mark.parametrize("is_async", [False, True])
def test_failures_and_timeouts_are_tried_again(is_async: bool, gate: threading.Event) -> None:
    """A tool that allows retries is run again after a failure or a timeout, each time with the same input."""
    seen: list[Any] = []

    def flaky(data: Any) -> str:
        seen.append(list(data))
        data.append("changed")
        if len(seen) < 3:
            raise OSError("not yet")
        return "done"

    async def flaky_later(data: Any) -> str:
        return flaky(data)

    made = tool(name="flaky", retries=2)(flaky_later if is_async else flaky)
    assert answer(asked("flaky", data=[1]), made) == ToolAnswer("done", attempts=3)
    assert seen == [[1]] * 3
    seen.clear()
    fewer = tool(name="flaky", retries=1)(made.function)
    assert answer(asked("flaky", data=[1]), fewer) == failed(
        "flaky failed with OSError: not yet", attempts=2
    )

    @tool(retries=2, timeout_s=0.01)
    def hang() -> None:
        gate.wait()

    assert (answer(asked("hang"), hang).outcome, answer(asked("hang"), hang).attempts) == (
        "timeout",
        3,
    )


def test_only_failures_are_tried_again() -> None:
    """Invalid input is not retried, nor is any call of a tool that allows no retries."""
    begun: list[int] = []

    @tool(retries=5)
    def look(where: str) -> None: ...

    @tool
    def fail() -> None:
        begun.append(1)
        raise OSError

    assert answer(asked("look"), look).attempts == 1
    assert answer(asked("fail"), fail).attempts == 1
    assert begun == [1]


def test_a_tool_that_needs_a_person_fails_at_once_where_there_is_none() -> None:
    """The tool is not started, and the model is told to continue without it."""

    @tool(needs_person=True)
    def confirm() -> str:
        return "yes"

    assert answer(asked("confirm"), confirm) == failed(
        "confirm needs a person to answer it, and nobody is there. Go on without it.", attempts=0
    )
    assert answer(asked("confirm"), confirm, person=True) == ToolAnswer("yes")


def stopped(
    made: Tool, begun: asyncio.Event | threading.Event, then: Callable[[], None] = lambda: None
) -> ToolAnswer:
    """Stop a call as soon as it has started, then call `then`, and return the result."""

    async def ask() -> ToolAnswer:
        live = live_tools([made])
        task = asyncio.create_task(live.run_tool(asked(made.name)))
        while not begun.is_set():
            await asyncio.sleep(0)
        live.stop_tool("call")
        await asyncio.sleep(0.01)
        then()
        return await task

    return asyncio.run(ask())


def test_a_call_that_runs_is_stopped(gate: threading.Event) -> None:
    """An async tool is cancelled and may clean up; a thread is abandoned and the result arrives immediately."""
    trail: list[str] = []
    begun, begun_thread = asyncio.Event(), threading.Event()

    @tool(timeout_s=None, retries=3)
    async def wait() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            trail.append("cleaned up")

    @tool(timeout_s=None, retries=3)
    def hang() -> None:
        begun_thread.set()
        gate.wait()

    assert stopped(wait, begun) == failed(
        "wait was stopped before it had finished.", outcome="aborted"
    )
    assert trail == ["cleaned up"]
    assert stopped(hang, begun_thread) == failed(
        "hang was stopped before it had finished. It may still be running.", outcome="aborted"
    )


def test_a_call_that_blocks_an_abort_is_waited_for(gate: threading.Event) -> None:
    """A tool that must not be interrupted finishes, and its own result is used."""
    begun, begun_thread, go_on = asyncio.Event(), threading.Event(), asyncio.Event()

    @tool(interrupt="block")
    async def write() -> str:
        begun.set()
        await go_on.wait()
        return "written"

    @tool(interrupt="block")
    def save() -> str:
        begun_thread.set()
        gate.wait()
        return "saved"

    assert stopped(write, begun, go_on.set) == ToolAnswer("written")
    assert stopped(save, begun_thread, gate.set) == ToolAnswer("saved")


@pytest.mark.parametrize("interrupt", ["cancel", "block"])
def test_a_call_that_was_stopped_before_it_began_is_not_run(interrupt: Any) -> None:
    """An early stop is remembered for its call only, and once."""

    @tool(interrupt=interrupt)
    def look() -> str:
        return "seen"

    async def ask() -> list[ToolAnswer]:
        live = live_tools([look])
        live.stop_tool("early")
        return [
            await live.run_tool(asked("look", "other")),
            await live.run_tool(asked("look", "early")),
            await live.run_tool(asked("look", "early")),
        ]

    assert asyncio.run(ask()) == [
        ToolAnswer("seen"),
        failed("look was stopped before it began.", outcome="aborted", attempts=0),
        ToolAnswer("seen"),
    ]


def test_a_call_may_be_stopped_from_any_thread() -> None:
    """A stop from another thread wakes the event loop; a late stop has no effect."""

    @tool(timeout_s=None)
    async def wait() -> None:
        threading.Thread(target=live.stop_tool, args=["call"]).start()
        await asyncio.Event().wait()

    live = live_tools([wait])
    assert asyncio.run(live.run_tool(asked("wait"))).outcome == "aborted"
    live.stop_tool("call")


def test_cancelling_the_caller_cancels_the_tool() -> None:
    """A cancelled caller ends as cancelled, after the tool has cleaned up."""
    trail: list[str] = []

    async def ask() -> None:
        begun = asyncio.Event()

        @tool
        async def wait() -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                trail.append("cleaned up")

        task = asyncio.create_task(live_tools([wait]).run_tool(asked("wait")))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert trail == ["cleaned up"]

    asyncio.run(ask())


def complaint(made: Tool, **value: Any) -> str | None:
    async def ask() -> str | None:
        return await live_tools([made]).check(asked(made.name, **value))

    return asyncio.run(ask())


def test_a_check_complains_in_its_own_words(gate: threading.Event) -> None:
    """A check receives the arguments that it names, with their defaults, sync or async; its text is the complaint."""

    def no_dots(path: str) -> str | None:
        return "path: must not hold two dots" if ".." in path else None

    async def no_dots_later(path: str, depth: int) -> str | None:
        return no_dots(path) if depth == 1 else "depth: must be 1"

    async def whole(value: dict[str, Any]) -> str | None:
        return None if value else "must not be empty"

    def look(path: str, depth: int = 1) -> None:
        raise AssertionError("must not run")

    for check in (no_dots, no_dots_later):
        made = tool(check=check)(look)
        assert complaint(made, path="a/b") is None
        assert complaint(made, path="../b") == "path: must not hold two dots"
    assert complaint(tool(check=no_dots_later)(look), path="a", depth=2) == "depth: must be 1"
    assert complaint(declared({"name": "any"}, look, check=whole)) == "must not be empty"
    assert complaint(tool(look), path="..") is None
    assert complaint(made) == "path: required, but not given (a value of type string)"


def test_a_check_that_fails_is_a_complaint(gate: threading.Event) -> None:
    """A check that raises, hangs, or returns a non-string refuses the call; a divergence propagates."""

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
        return complaint(tool(check=check, timeout_s=0.01)(look), path="a")

    assert complaint(tool(check=raises)(look), path="a") == "its check failed with SystemExit: a"
    assert complaint(tool(check=answers)(look), path="a") == (
        "its check returned a bool instead of a string or None"
    )
    assert checked(hangs) == "its check did not finish within 0.01 seconds"
    assert len(complaint(tool(check=long)(look), path="a") or "") <= 50_000
    with pytest.raises(Differs):
        complaint(tool(check=differs)(look), path="a")


def test_a_long_result_is_kept_under_its_calls_id() -> None:
    """A result that is too long goes to `keep` with the ID of the call, in the caller's context."""
    variable = contextvars.ContextVar("variable", default="unset")
    kept: list[tuple[str, str, str]] = []

    def keep(tool_use_id: str, text: str) -> str:
        kept.append((tool_use_id, text, variable.get()))
        return "/kept"

    @tool(result_chars_max=10_000)
    async def look(size: int) -> str:
        return "x" * size

    async def ask() -> list[ToolAnswer]:
        variable.set("set")
        live = live_tools([look], keep=keep)
        return [await live.run_tool(asked("look", size=size)) for size in (10_000, 10_001)]

    whole, cut = asyncio.run(ask())
    assert whole.content == "x" * 10_000
    assert "of 10,001 characters are left out here. The whole result lies in /kept]" in cut.content
    assert not cut.is_error
    assert kept == [("call", "x" * 10_001, "set")]


def test_a_result_that_cannot_be_kept_is_cut() -> None:
    """If storing fails, the agent continues with a cut result, and the user is warned once."""

    def keep(tool_use_id: str, text: str) -> str:
        raise OSError("no space left")

    @tool
    def look() -> str:
        return "x" * 100_000

    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        found = answer(asked("look"), look, keep=keep)
    assert "are left out here and were not kept" in found.content
    assert not found.is_error


def test_nothing_is_kept_of_a_call_that_was_given_up(gate: threading.Event) -> None:
    """A result that arrives after the call was abandoned is dropped, because nothing would refer to its file."""
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

    assert answer(asked("hang"), hang, keep=keep).outcome == "timeout"
    gate.set()
    assert ended.wait(30)
    assert kept == []


def test_tools_that_cannot_stand_together_are_refused() -> None:
    """Two tools with one name are the author's mistake, found before anything runs."""
    with pytest.raises(UsageError, match="is already the name of the tool look"):
        LiveTools([tool(name="look")(nothing), tool(name="look")(nothing)], None, False)


def nothing() -> None: ...


def test_a_tool_that_prints_100_mb() -> None:
    """Printed output goes to its destination, and the result is the return value."""

    @tool
    def talk() -> str:
        for _ in range(100):
            print("x" * 1_000_000)
        return "done"

    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        assert answer(asked("talk"), talk) == ToolAnswer("done")


class Wide:
    def __repr__(self) -> str:
        return "x" * 100_000_000


@pytest.mark.parametrize(
    ("make", "most_mb"),
    [(lambda: "x" * 100_000_000, 110), (lambda: b"x" * 100_000_000, 210), (Wide, 110)],
    ids=["str", "bytes", "repr"],
)
def test_a_result_of_100_mb(make: Callable[[], object], most_mb: int) -> None:
    """Of 100 MB the model sees 50,000 characters; only bytes are copied once, to become text."""
    tracemalloc.start()
    try:
        found = answer(asked("wide"), tool(name="wide")(make))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.outcome == "executed"
    assert 49_000 < len(found.content) <= 50_000
    assert peak < most_mb * 1_000_000


def test_the_interpreter_ends_though_a_tool_never_does() -> None:
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
