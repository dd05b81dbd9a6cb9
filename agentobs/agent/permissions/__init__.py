"""Permissions: pure functions that decide which tool calls run, from rules, a mode and safety checks.

`decide` returns allow, deny or ask. If it returns ask, approval is requested, and `consented` turns the answer into the
final decision. See `docs/permissions.md`.
"""

from __future__ import annotations

from agentobs.agent.permissions.consent import (
    Denials,
    consented,
    needs_person,
    updated_input,
)
from agentobs.agent.permissions.decision import Decision, ReasonType, Resolver, decide
from agentobs.agent.permissions.modes import MODES, Mode
from agentobs.agent.permissions.permissions import Permissions, Shadowed
from agentobs.agent.permissions.rule_settings import from_settings
from agentobs.agent.permissions.rules import (
    SOURCES,
    Behavior,
    Call,
    ResolvedPath,
    Rule,
    Source,
    ToolClass,
)

__all__ = [
    "MODES",
    "SOURCES",
    "Behavior",
    "Call",
    "Decision",
    "Denials",
    "Mode",
    "Permissions",
    "ReasonType",
    "ResolvedPath",
    "Resolver",
    "Rule",
    "Shadowed",
    "Source",
    "ToolClass",
    "consented",
    "decide",
    "from_settings",
    "needs_person",
    "updated_input",
]
