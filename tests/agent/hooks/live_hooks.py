"""Shared helpers of the hook tests: run live hooks, one alone or a whole table."""

from __future__ import annotations

import asyncio
from typing import Any

from anthropic import AsyncAnthropic

from agentobs.agent.execution.hook_runner import LiveHooks
from agentobs.agent.hooks import Hook, HookAnswer, HookEvent, parse, table
from agentobs.records.exchanges import WorldQuestion

NOBODY = AsyncAnthropic(api_key="made-up", base_url="http://127.0.0.1:9")
"""A client for hooks that call no model."""


def question(hook: Hook, **facts: Any) -> WorldQuestion:
    """The loop's question to the world about a hook."""
    asked = {"event": hook.event, "hook": hook.name, "turn": 1, **facts}
    if hook.background:
        asked["background"] = True
    return WorldQuestion("hook", f"1:{hook.event}:{hook.name}", asked)


def raw(run: Any, event: HookEvent = "pre_tool_use", *, live: Any = None, **facts: Any) -> Any:
    """The live world's answer for one hook; `run` is a hook, or its `run` value."""
    (hook,) = table([run if isinstance(run, Hook) else Hook(event, run, name="one")])
    hooks = LiveHooks([hook], NOBODY, **(live or {}))
    return asyncio.run(hooks.answer(question(hook, **facts)))


def answer(run: Any, event: HookEvent = "pre_tool_use", **more: Any) -> HookAnswer:
    """The same, parsed like the loop does."""
    return parse(raw(run, event, **more), run.event if isinstance(run, Hook) else event)
