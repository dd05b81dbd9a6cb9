"""Hooks that are functions: errors, background hooks, and limits."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from agentobs.agent.execution.hook_runner import BACKGROUND_MAX, LiveHooks
from agentobs.agent.hooks import AgentHook, Hook, HookAnswer, PromptHook, table
from agentobs.errors import ReplayEnd, UsageError
from agentobs.records.exchanges import WorldQuestion
from agentobs.world import GATED_EVENTS, answer_unattended

from .live_hooks import NO_CLIENT, answer, question, raw


async def waits(payload: Any) -> None:
    await asyncio.Event().wait()


def test_a_function_gets_the_payload_and_returns_an_answer() -> None:
    """A sync or async function gets the payload and may return an object, a `HookAnswer` or None."""

    async def later(payload: Any) -> Any:
        return {"decision": "deny", "reason": payload["tool_name"]}

    assert answer(later, tool_name="look") == HookAnswer("blocking", "look", "deny")
    assert answer(
        lambda payload: HookAnswer(input=payload["tool_input"]), tool_input={"a": 1}
    ).input == {"a": 1}
    assert raw(lambda payload: None) == {"outcome": "success"}
    assert answer(lambda payload: later(payload), tool_name="x").reason == "x"


def test_a_function_gets_a_copy_of_the_payload() -> None:
    """A function that modifies its payload does not affect the call."""
    facts: dict[str, Any] = {"tool_input": {"a": [1]}}

    def change(payload: Any) -> None:
        payload["tool_input"]["a"].append(2)

    assert answer(change, **facts).outcome == "success"
    assert facts == {"tool_input": {"a": [1]}}


def raises(error: BaseException) -> Any:
    def function(payload: Any) -> None:
        raise error

    return function


async def raises_later(payload: Any) -> None:
    raise SystemExit(3)


async def cancels_itself(payload: Any) -> None:
    raise asyncio.CancelledError


class Odd(dict[str, Any]):
    """An object whose methods raise exceptions."""

    def values(self) -> Any:
        raise RuntimeError("odd")


@pytest.mark.parametrize(
    ("function", "outcome", "found"),
    [
        (raises(ValueError("ouch")), "non_blocking_error", "ValueError: ouch"),
        (raises(SystemExit(3)), "non_blocking_error", "SystemExit: 3"),
        (raises(KeyboardInterrupt()), "non_blocking_error", "KeyboardInterrupt"),
        (raises_later, "non_blocking_error", "SystemExit: 3"),
        (raises(TimeoutError("own")), "non_blocking_error", "TimeoutError: own"),
        (cancels_itself, "cancelled", "cancelled itself"),
        (lambda payload: True, "non_blocking_error", "has the type bool"),
        (lambda payload: {"reason": object()}, "non_blocking_error", "not JSON"),
        (lambda payload: {"reason": float("nan")}, "non_blocking_error", "not JSON"),
        (lambda payload: {"reason": "x" * 2_000_000}, "non_blocking_error", "longer than"),
        (lambda payload: Odd(a=1), "non_blocking_error", "odd"),
        (lambda: None, "non_blocking_error", "TypeError"),
    ],
)
def test_a_failing_function_blocks_nothing(function: Any, outcome: str, found: str) -> None:
    """Any exception or invalid return value becomes an answer with a description of the error."""
    read = answer(function)
    assert read.outcome == outcome
    assert found in read.reason


def test_a_divergence_is_not_a_hook_failure() -> None:
    """If a function raises a divergence, it propagates unchanged instead of becoming an error of the hook."""
    with pytest.raises(ReplayEnd):
        answer(raises(ReplayEnd()))


def hangs_in_a_thread(payload: Any) -> None:
    threading.Event().wait(10)


async def does_not_listen(payload: Any) -> None:
    for _ in range(2):
        try:
            await asyncio.sleep(0.2)
        except asyncio.CancelledError:
            continue


@pytest.mark.parametrize("function", [waits, hangs_in_a_thread, does_not_listen])
def test_a_function_that_hangs_is_abandoned(function: Any) -> None:
    """A function that hangs, in the event loop or in a thread, is abandoned after the timeout of its hook."""
    assert raw(Hook("stop", function, timeout_s=0.05)) == {
        "outcome": "cancelled",
        "reason": "no response within 0.05 seconds",
    }


def test_a_function_that_changes_the_working_directory(tmp_path: Path) -> None:
    """If a function changes the working directory, the directory is restored and the user is warned."""
    before = Path.cwd()
    with pytest.warns(RuntimeWarning, match="was restored"):
        raw(lambda payload: os.chdir(tmp_path))
    assert Path.cwd() == before


def test_the_loop_does_not_wait_for_background_hooks() -> None:
    """A background hook is answered immediately; it continues until it ends or times out."""
    ran_events: list[str] = []

    async def background(payload: Any) -> None:
        await asyncio.sleep(0)
        ran_events.append(payload["event"])

    hooks = table(
        [
            Hook("stop", background, background=True, name="done"),
            Hook("stop", waits, background=True, name="waits", timeout_s=0.05),
        ]
    )
    live = LiveHooks(hooks, NO_CLIENT)

    async def run_hooks() -> None:
        for hook in hooks:
            assert await live.answer(question(hook)) == {"outcome": "success"}
        assert ran_events == []
        await live.wait_for_background()
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(run_hooks())
    assert ran_events == ["stop"]


def test_background_hooks_are_limited() -> None:
    """Beyond the maximum number of running background hooks, another background hook is an error."""
    (hook,) = table([Hook("stop", waits, background=True, timeout_s=0.5)])
    live = LiveHooks([hook], NO_CLIENT)

    async def run_hooks() -> list[str]:
        answers = [await live.answer(question(hook)) for _ in range(BACKGROUND_MAX + 1)]
        await live.wait_for_background()
        return [each["outcome"] for each in answers]

    assert asyncio.run(run_hooks()) == ["success"] * BACKGROUND_MAX + ["non_blocking_error"]


def test_an_unknown_hook_is_cancelled() -> None:
    """If the live world has no hook with the requested name, the outcome is `cancelled`, with a reason."""
    unknown = WorldQuestion("hook", "1:stop:a", {"event": "stop", "hook": "a", "turn": 1})
    assert asyncio.run(LiveHooks([], NO_CLIENT).answer(unknown)) == {
        "outcome": "cancelled",
        "reason": "no function is registered for the hook a",
    }


@pytest.mark.parametrize("event", sorted(GATED_EVENTS))
def test_an_unknown_gate_is_a_veto(event: str) -> None:
    """A hook that could veto, and that neither the live world nor a bare world can run, is a veto."""
    payload = {"event": event, "hook": "a", "turn": 1}
    unknown = WorldQuestion("hook", f"1:{event}:a", payload)
    assert asyncio.run(LiveHooks([], NO_CLIENT).answer(unknown))["outcome"] == "blocking"
    assert asyncio.run(answer_unattended(unknown))["outcome"] == "blocking"


def test_a_model_hook_needs_a_model() -> None:
    """A prompt or agent hook is rejected if neither the hook nor the live world sets a model."""
    for run in (PromptHook("Is it safe?"), AgentHook("Is it safe?")):
        with pytest.raises(UsageError, match="but none is set"):
            LiveHooks(table([Hook("stop", run)]), NO_CLIENT)


def test_agent_hooks_need_read_only_tools() -> None:
    """An agent hook is rejected if it names a tool that is not read-only."""
    hooks = table([Hook("stop", AgentHook("Look.", "m", tools=("write",)))])

    async def unused(*given: Any, **more: Any) -> Any:
        yield None

    with pytest.raises(UsageError, match="write is not a read-only tool of this agent"):
        LiveHooks(hooks, NO_CLIENT, run=unused)
