"""Hooks that run on events of an agent; see `docs/hooks.md`."""

from __future__ import annotations

from agentobs.agent.hooks.conditions import matching
from agentobs.agent.hooks.declarations import (
    ALLOWED_EFFECTS,
    EVENTS,
    AgentHook,
    Command,
    Effect,
    Hook,
    HookEvent,
    Http,
    Occasion,
    PromptHook,
    table,
)
from agentobs.agent.hooks.hook_settings import hooks_from_settings
from agentobs.agent.hooks.hook_verdict import HookAnswer, Verdict, parse, usage_in, verdict
from agentobs.agent.hooks.invocation import fire

__all__ = [
    "ALLOWED_EFFECTS",
    "EVENTS",
    "AgentHook",
    "Command",
    "Effect",
    "Hook",
    "HookAnswer",
    "HookEvent",
    "Http",
    "Occasion",
    "PromptHook",
    "Verdict",
    "fire",
    "hooks_from_settings",
    "matching",
    "parse",
    "table",
    "usage_in",
    "verdict",
]
