"""Hooks that are functions, in the background, and in parallel."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from agentobs.agent.execution.hook_runner import BACKGROUND_MAX, LiveHooks
from agentobs.agent.hooks import AgentHook, Hook, HookAnswer, PromptHook, table
from agentobs.errors import ReplaySays, UsageError
from agentobs.records.exchanges import WorldQuestion

from .asked import NOBODY, answer, question, raw


async def waits(payload: Any) -> None:
    await asyncio.Event().wait()


def test_a_function_gets_what_happens_and_returns_an_answer() -> None:
    """An object, a `HookAnswer` or nothing; sync or async."""

    async def later(payload: Any) -> Any:
        return {"decision": "deny", "reason": payload["tool_name"]}

    assert answer(later, tool_name="look") == HookAnswer("blocking", "look", "deny")
    assert answer(lambda told: HookAnswer(input=told["tool_input"]), tool_input={"a": 1}).input == {
        "a": 1
    }
    assert raw(lambda payload: None) == {"outcome": "success"}
    assert answer(lambda payload: later(payload), tool_name="x").reason == "x"


def test_a_function_changes_nothing_by_changing_what_it_is_told() -> None:
    """It gets a copy."""
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
    """An object whose own code fails."""

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
        (lambda payload: True, "non_blocking_error", "of the type bool"),
        (lambda payload: {"reason": object()}, "non_blocking_error", "not JSON"),
        (lambda payload: {"reason": float("nan")}, "non_blocking_error", "not JSON"),
        (lambda payload: {"reason": "x" * 2_000_000}, "non_blocking_error", "longer than"),
        (lambda payload: Odd(a=1), "non_blocking_error", "odd"),
        (lambda: None, "non_blocking_error", "TypeError"),
    ],
)
def test_a_function_that_crashes_hurts_nobody(function: Any, outcome: str, found: str) -> None:
    """Anything that it raises or returns becomes an answer with a description."""
    read = answer(function)
    assert read.outcome == outcome
    assert found in read.reason


def test_a_divergence_is_nobodys_failure() -> None:
    """A divergence is raised unchanged."""
    with pytest.raises(ReplaySays):
        answer(raises(ReplaySays()))


def hangs_in_a_thread(payload: Any) -> None:
    threading.Event().wait(10)


async def does_not_listen(payload: Any) -> None:
    for _ in range(2):
        try:
            await asyncio.sleep(0.2)
        except asyncio.CancelledError:
            continue


@pytest.mark.parametrize("function", [waits, hangs_in_a_thread, does_not_listen])
def test_a_function_that_hangs_is_given_up(function: Any) -> None:
    """It times out and is abandoned."""
    assert raw(Hook("stop", function, timeout_s=0.05)) == {
        "outcome": "cancelled",
        "reason": "no response within 0.05 seconds",
    }


def test_a_function_that_changes_the_folder(tmp_path: Path) -> None:
    """The working directory is restored, and the user is warned."""
    before = Path.cwd()
    with pytest.warns(RuntimeWarning, match="was restored"):
        raw(lambda payload: os.chdir(tmp_path))
    assert Path.cwd() == before


def test_background_hooks_are_not_waited_for() -> None:
    """The answer arrives at once; the hook continues until it is done, or times out."""
    came: list[str] = []

    async def background(payload: Any) -> None:
        await asyncio.sleep(0)
        came.append(payload["event"])

    hooks = table(
        [
            Hook("stop", background, background=True, name="done"),
            Hook("stop", waits, background=True, name="waits", timeout_s=0.05),
        ]
    )
    live = LiveHooks(hooks, NOBODY)

    async def ask() -> None:
        for hook in hooks:
            assert await live.answer(question(hook)) == {"outcome": "success"}
        assert came == []
        await live.settled()
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(ask())
    assert came == ["stop"]


def test_background_hooks_are_bounded() -> None:
    """In number, and each by its timeout."""
    (hook,) = table([Hook("stop", waits, background=True, timeout_s=0.5)])
    live = LiveHooks([hook], NOBODY)

    async def ask() -> list[str]:
        asked = [await live.answer(question(hook)) for _ in range(BACKGROUND_MAX + 1)]
        await live.settled()
        return [each["outcome"] for each in asked]

    assert asyncio.run(ask()) == ["success"] * BACKGROUND_MAX + ["non_blocking_error"]


def test_a_hook_that_nobody_here_knows() -> None:
    """Its outcome is cancelled, which is visible."""
    asked = WorldQuestion("hook", "1:stop:a", {"event": "stop", "hook": "a", "turn": 1})
    assert asyncio.run(LiveHooks([], NOBODY).answer(asked)) == {
        "outcome": "cancelled",
        "reason": "no function is registered for the hook a",
    }


def test_a_model_has_to_be_named() -> None:
    """By the hook, or as the default."""
    for run in (PromptHook("Is it safe?"), AgentHook("Is it safe?")):
        with pytest.raises(UsageError, match="names none"):
            LiveHooks(table([Hook("stop", run)]), NOBODY)


def test_agents_need_tools_that_only_read() -> None:
    """A tool that changes something is not available to a hook."""
    hooks = table([Hook("stop", AgentHook("Look.", "m", tools=("write",)))])

    async def nobody(*given: Any, **more: Any) -> Any:
        yield None

    with pytest.raises(UsageError, match="no tool write that only reads"):
        LiveHooks(hooks, NOBODY, run=nobody)
