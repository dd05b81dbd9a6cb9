"""Hooks: what may run when something happens to an agent; `docs/hooks.md` is their reference."""

from __future__ import annotations

from agentobs.agent.hooks.firing import fire
from agentobs.agent.hooks.hooks import (
    EVENTS,
    MAY,
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
from agentobs.agent.hooks.matching import matching
from agentobs.agent.hooks.settings import hooks_from_settings
from agentobs.agent.hooks.verdict import HookAnswer, Verdict, parse, usage_in, verdict

__all__ = [
    "EVENTS",
    "MAY",
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
