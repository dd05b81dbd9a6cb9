"""Facts about effects: commands, MCP calls, and their links to tool calls, one class per table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agentobs.records.labels import Label

StreamKind = Literal[
    "pipe", "socket", "file", "terminal", "device", "closed", "captured", "inherited"
]
"""What a standard stream of a command was. The last two are known for commands of the agent's own process: its program
captured the stream, or the command inherited it.
"""
CommandOutcome = Literal["exited", "signaled", "running", "lost", "not_started"]
"""How a command ended: with an exit code; by a signal; not before the observation ended; unknown, because the shim was
killed; or the program could not be started.
"""
McpOutcome = Literal["ok", "tool_error", "error", "no_response"]
"""How an MCP call ended: with a result; with a result that is marked as an error; with a JSON-RPC error or an HTTP
error; or without a response.
"""
Certainty = Literal["observed", "inferred"]
LinkRule = Literal[
    "named_call", "same_span", "equal_command", "contained_command", "parent_command", "equal_call", "only_open_call"
]  # fmt: skip
"""Why an effect belongs to a tool call; docs/effects.md describes the rules."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command was run."""

    session_id: str
    interaction_id: str | None
    lane: Label | None
    turn: int | None
    command_id: str
    parent_command_id: str | None
    span_id: str | None
    program: Label
    source: Literal["shim", "process"]
    started_ns: int
    ended_ns: int | None
    duration_ns: int | None
    outcome: CommandOutcome
    exit_code: int | None
    signal: Label | None
    argument_count: int
    argument_bytes: int
    stdin: StreamKind | None
    stdout: StreamKind | None
    stderr: StreamKind | None
    is_merged: bool
    stdout_bytes: int | None
    stderr_bytes: int | None
    content: str | None = None


@dataclass(frozen=True, slots=True)
class McpCall:
    """A request was sent to an MCP server, or by one."""

    session_id: str
    interaction_id: str | None
    lane: Label | None
    turn: int | None
    call_id: str
    span_id: str | None
    server: Label
    transport: Literal["stdio", "http", "process"]
    sender: Literal["client", "server"]
    method: Label
    tool: Label | None
    started_ns: int
    ended_ns: int | None
    duration_ns: int | None
    outcome: McpOutcome
    error_code: int | None
    request_bytes: int
    response_bytes: int | None
    content: str | None = None


@dataclass(frozen=True, slots=True)
class EffectLink:
    """An effect belongs to a tool call."""

    session_id: str
    effect_id: str
    kind: Literal["command", "mcp_call"]
    tool_use_id: Label
    attempt_id: str
    ordinal: int
    interaction_id: str | None
    lane: Label
    turn: int | None
    certainty: Certainty
    rule: LinkRule
