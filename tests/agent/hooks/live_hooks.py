"""Shared helpers of the hook tests: run one live hook, or a complete table."""

from __future__ import annotations

import asyncio
from typing import Any

from anthropic import AsyncAnthropic

from agentobs.agent.execution.hook_runner import LiveHooks
from agentobs.agent.hooks import Hook, HookAnswer, HookEvent, parse, table
from agentobs.records.exchanges import WorldQuestion

NO_CLIENT = AsyncAnthropic(api_key="made-up", base_url="http://127.0.0.1:9")
"""A client for hooks that call no model."""


def question(hook: Hook, **facts: Any) -> WorldQuestion:
    """Return the loop's question to the world for this hook."""
    payload = {"event": hook.event, "hook": hook.name, "turn": 1, **facts}
    if hook.background:
        payload["background"] = True
    return WorldQuestion("hook", f"1:{hook.event}:{hook.name}", payload)


def raw(run: Any, event: HookEvent = "pre_tool_use", *, live: Any = None, **facts: Any) -> Any:
    """Return the live world's answer for one hook; `run` is a hook, or the value of its `run` field."""
    (hook,) = table([run if isinstance(run, Hook) else Hook(event, run, name="one")])
    hooks = LiveHooks([hook], NO_CLIENT, **(live or {}))
    return asyncio.run(hooks.answer(question(hook, **facts)))


def answer(run: Any, event: HookEvent = "pre_tool_use", **more: Any) -> HookAnswer:
    """Return the live world's answer for one hook, parsed as the loop does."""
    return parse(raw(run, event, **more), run.event if isinstance(run, Hook) else event)
