"""A steering message stops the running calls of tools that declare `interrupt="cancel"`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest

import agentobs
from agentobs.agent import Event, RequestStart, Steering, ToolDispatch, tool

from .agent_runs import ALLOW_ALL, of_kind
from .provider import call
from .recorded_agents import DONE, Conversation, calling, options, outcomes, record

RAN: list[str] = []


@pytest.fixture(autouse=True)
def _forget() -> None:
    RAN.clear()


@tool(interrupt="cancel", read_only=True)
async def watch(what: str) -> str:
    """Watch something until it is stopped."""
    RAN.append(f"watch {what}")
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        RAN.append(f"cancelled {what}")
        raise
    return what


@tool(interrupt="cancel")
async def build(what: str) -> str:
    """Build something until it is stopped."""
    RAN.append(f"build {what}")
    await asyncio.Event().wait()
    return what


@tool
def write(what: str) -> str:
    """Write something."""
    RAN.append(f"write {what}")
    return f"wrote {what}"


def agent_with(*tools: Any) -> Callable[[Any], agentobs.Agent]:
    return lambda client: agentobs.Agent(
        client, options=options(permissions=ALLOW_ALL), tools=tools
    )


def steering(kind: type[Any] = ToolDispatch, count: int = 1) -> Callable[..., None]:
    """Return an observer that sends a message after a number of events of a kind."""
    seen: list[Event] = []

    def on(agent: agentobs.Agent, event: Event) -> None:
        if isinstance(event, kind):
            seen.append(event)
            if len(seen) == count:
                agent.steer("Stop that.")

    return on


def check_replay(conversation: Conversation, tmp_path: Path) -> None:
    ran = list(RAN)
    again = conversation.replayed(tmp_path / "fixture")
    assert outcomes(again) == outcomes(conversation.events)
    assert of_kind(again, Steering) == of_kind(conversation.events, Steering)
    assert ran == RAN


def run(
    tmp_path: Path, calls: Sequence[dict[str, Any]], *tools: Any, on: Callable[..., None]
) -> Conversation:
    return record(tmp_path, [calling(*calls), DONE], agent_with(*tools), on=on)


def test_a_message_stops_a_running_call(tmp_path: Path) -> None:
    """The call is cancelled, later calls are skipped, and the model gets the placeholder and then the message."""
    calls = [call("a", "build", what="x"), call("b", "write", what="y")]
    done = run(tmp_path, calls, build, write, on=steering())
    assert RAN == ["build x"]
    assert done.results[0]["content"] == "build was stopped before it finished."
    assert [each[2] for each in outcomes(done.events)] == ["aborted", "skipped"]
    assert [each.get("text", each.get("is_error")) for each in done.results] == [
        True,
        True,
        "Stop that.",
    ]
    assert of_kind(done.events, Steering) == [Steering(1, ("Stop that.",), ("b",))]
    check_replay(done, tmp_path)


def test_a_message_stops_parallel_calls(tmp_path: Path) -> None:
    """All running calls of cancelable tools are cancelled; other calls of the same batch finish."""
    finished = threading.Event()

    @tool(read_only=True)
    async def look(what: str) -> str:
        """Look at something until the call before it was cancelled."""
        while "cancelled x" not in RAN:
            await asyncio.sleep(0.001)
        finished.set()
        return what

    calls = [
        call("a", "watch", what="x"),
        call("b", "look", what="y"),
        call("c", "watch", what="z"),
    ]
    done = run(tmp_path, calls, watch, look, on=steering(count=3))
    assert [each[2] for each in outcomes(done.events)] == ["aborted", "executed", "aborted"]
    assert finished.is_set()
    check_replay(done, tmp_path)


@pytest.mark.parametrize("interrupt", ["block", None])
def test_other_tools_finish(tmp_path: Path, interrupt: Literal["block"] | None) -> None:
    """Without `interrupt="cancel"`, a running call finishes before the message is delivered."""
    arrived = threading.Event()

    @tool(interrupt=interrupt)
    async def save(what: str) -> str:
        """Save something after the message has arrived."""
        while not arrived.is_set():
            await asyncio.sleep(0.001)
        for _ in range(10):
            await asyncio.sleep(0)
        return f"saved {what}"

    def on(agent: agentobs.Agent, event: Event) -> None:
        if isinstance(event, ToolDispatch):
            agent.steer("Stop that.")
            arrived.set()

    done = run(tmp_path, [call("a", "save", what="x")], save, on=on)
    assert [each[2:] for each in outcomes(done.events)] == [("executed", "saved x")]
    assert of_kind(done.events, Steering) == [Steering(1, ("Stop that.",), ())]


def test_a_message_that_arrived_before_the_call(tmp_path: Path) -> None:
    """If a message arrived while the model responded, a cancelable call is stopped as soon as it starts."""
    done = run(tmp_path, [call("a", "build", what="x")], build, on=steering(RequestStart))
    assert [each[2] for each in outcomes(done.events)] == ["aborted"]
    assert [each.texts for each in of_kind(done.events, Steering)] == [("Stop that.",)]
    check_replay(done, tmp_path)


def test_a_sync_call_is_abandoned(tmp_path: Path) -> None:
    """A sync function cannot be stopped, so its thread is abandoned, and the result mentions that."""
    released = threading.Event()

    @tool(interrupt="cancel")
    def wait(what: str) -> str:
        """Wait for something."""
        released.wait(30)
        return what

    try:
        done = run(tmp_path, [call("a", "wait", what="x")], wait, on=steering())
    finally:
        released.set()
    assert [each[2:] for each in outcomes(done.events)] == [
        ("aborted", "wait was stopped before it finished. It may still be running.")
    ]


def test_a_stopped_shell_does_not_stop_its_siblings(tmp_path: Path) -> None:
    """A message stops only cancelable tools, even if a failure of the stopped tool would stop its siblings."""
    stopped = threading.Event()

    @tool(tool_class="shell", concurrent=True, interrupt="cancel", subject="command")
    async def shell(command: str) -> str:
        """Run a command until it is stopped."""
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return command

    @tool(read_only=True)
    async def look(what: str) -> str:
        """Look at something until the command was stopped."""
        while not stopped.is_set():
            await asyncio.sleep(0.001)
        for _ in range(20):
            await asyncio.sleep(0)
        return what

    calls = [call("a", "shell", command="make"), call("b", "look", what="y")]
    done = run(tmp_path, calls, shell, look, on=steering(count=2))
    assert [each[2] for each in outcomes(done.events)] == ["aborted", "executed"]


def test_a_failing_wait_for_messages_fails_the_run(tmp_path: Path) -> None:
    """If a world cannot wait for messages, the run ends with that error instead of ignoring it."""
    import dataclasses

    from agentobs import runtime

    @tool(interrupt="cancel")
    async def step(what: str) -> str:
        """Do a step."""
        for _ in range(5):
            await asyncio.sleep(0)
        return what

    async def broken() -> None:
        raise OSError("no inbox")

    with runtime.replaced(transform=lambda live: dataclasses.replace(live, message_arrived=broken)):
        done = run(tmp_path, [call("a", "step", what="x")], step, on=lambda *_: None)
    result: Any = done.events[-1]
    assert (result.terminal_reason, result.error) == ("internal_error", "OSError")
