"""Declarations of hooks, and the table that holds them.

Code, settings and the session each add hooks; `table` merges them. `docs/hooks.md` describes each
event's payload and what its answer may do.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

from agentobs.agent.permissions import Permissions, ResolvedPath, Rule, ToolClass
from agentobs.errors import UsageError
from agentobs.records.canonical_json import Json
from agentobs.records.labels import is_label

HookEvent = Literal[
    "session_start",
    "session_end",
    "user_prompt_submit",
    "pre_tool_use",
    "post_tool_use",
    "post_tool_use_failure",
    "permission_request",
    "permission_denied",
    "pre_compact",
    "post_compact",
    "stop",
    "stop_failure",
    "sub_agent_start",
    "sub_agent_stop",
    "notification",
]
"""The events that hooks can run on."""

EVENTS: tuple[HookEvent, ...] = get_args(HookEvent)

Effect = Literal["block", "decision", "input", "output", "context", "stop"]
"""The possible effects of an answer: block the event; decide on the call in place of a person; change a tool's input;
change its output; add context for the model; stop the run.
"""

MAY: Mapping[HookEvent, frozenset[Effect]] = {
    "session_start": frozenset({"context", "stop"}),
    "session_end": frozenset(),
    "user_prompt_submit": frozenset({"block", "context", "stop"}),
    "pre_tool_use": frozenset({"block", "decision", "input", "context", "stop"}),
    "post_tool_use": frozenset({"block", "output", "context", "stop"}),
    "post_tool_use_failure": frozenset({"block", "output", "context", "stop"}),
    "permission_request": frozenset({"block", "decision", "stop"}),
    "permission_denied": frozenset({"context", "stop"}),
    "pre_compact": frozenset({"block", "context"}),
    "post_compact": frozenset({"context"}),
    "stop": frozenset({"block", "stop"}),
    "stop_failure": frozenset(),
    "sub_agent_start": frozenset({"block", "context"}),
    "sub_agent_stop": frozenset({"block", "stop"}),
    "notification": frozenset(),
}
"""The effects allowed per event. Any other effect in an answer is an error of the hook and is
ignored.
"""

CONDITIONAL: frozenset[HookEvent] = frozenset(
    {
        "pre_tool_use",
        "post_tool_use",
        "post_tool_use_failure",
        "permission_request",
        "permission_denied",
        "sub_agent_start",
        "sub_agent_stop",
    }
)
"""Events that accept conditions: those of a tool call, or of a sub-agent, whose name then acts as the tool's.
"""

AGENT_TURNS_MAX = 50
"""Maximum turns of an agent hook."""


@dataclass(frozen=True, slots=True)
class Command:
    """A program that receives the payload on standard input and may print its answer, a JSON object."""

    run: str | tuple[str, ...]
    """The program and its arguments; a string is a command line for `/bin/sh`."""
    keep: tuple[str, ...] = ()
    """Environment variables that are passed on although they look like credentials."""


@dataclass(frozen=True, slots=True)
class Http:
    """A server that receives the payload in a POST and may respond with a JSON object."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Sent with the first request, but not after a redirect to another origin."""
    proxy: str | None = field(default=None, repr=False)
    """Proxy for the request. It hides the target, so hosts are not checked. Never read from the
    environment.
    """


@dataclass(frozen=True, slots=True)
class PromptHook:
    """A single call of a small model that evaluates the event."""

    prompt: str
    """The instruction to evaluate; the payload follows it as JSON."""
    model: str | None = None
    """The model; defaults to the hook model of the live world."""


@dataclass(frozen=True, slots=True)
class AgentHook:
    """An agent that may inspect the environment with read-only tools before it evaluates the event."""

    prompt: str
    """The instruction to evaluate; the payload follows it as JSON."""
    model: str | None = None
    """The model; defaults to the hook model of the live world."""
    tools: tuple[str, ...] | None = None
    """Names of its tools; defaults to all read-only tools of the live world. No other tools are
    available.
    """
    max_turns: int = AGENT_TURNS_MAX
    """Cancelled after this many turns without an answer; at most 50."""
    permissions: Permissions = field(default_factory=lambda: Permissions(mode="dontAsk"))
    """Permissions for its tools, independent of the agent's permissions. It cannot request approval.
    """


Function = Callable[[Json], Any]
"""Receives the payload; returns an answer object, a `HookAnswer` or None. Sync (run in a thread) or
async.
"""

Run = Function | Command | Http | PromptHook | AgentHook


@dataclass(frozen=True, slots=True)
class Hook:
    """A declared hook: an event, and what runs when it occurs."""

    event: HookEvent
    run: Run
    when: str | None = None
    """Only for matching calls: `tool` or `tool(pattern)`, as in a deny rule."""
    name: str = ""
    """Its name in the table, a label; if empty, `table` derives one from the source and a number."""
    once: bool = False
    """Whether it runs at most once per conversation."""
    background: bool = False
    """Whether the agent does not wait for it; its answer then has no effect."""
    timeout_s: float | None = None
    """Timeout in seconds; None for the default of its kind."""
    source: str = "code"
    """Who added it, a label: `code`, `settings`, `session` or another name."""

    def __post_init__(self) -> None:
        """Validate the fields.

        Raises:
            UsageError: a field is invalid, or does not fit the others.
        """
        where = f"hook {self.name or self.event}"
        if self.event not in EVENTS:
            raise UsageError(
                f"{self.event!r} is not a hook event", todo=f"Use one of {', '.join(EVENTS)}"
            )
        for text, what in ((self.name or "hook", "name"), (self.source, "source")):
            if not isinstance(text, str) or not is_label(text):
                raise UsageError(
                    f"its {what} {text!r} is not a label",
                    where=where,
                    todo="Use A-Z a-z 0-9 . _ : / @ -",
                )
        if self.when is not None:
            self._check_condition(where)
        limit = self.timeout_s
        if limit is not None and not (_is_number(limit) and limit > 0):
            raise UsageError(
                f"its time limit is {limit!r}", where=where, todo="Give seconds above 0"
            )
        _check_run(self.run, where)

    def _check_condition(self, where: str) -> None:
        if self.event not in CONDITIONAL:
            raise UsageError(
                f"it has a condition, but {self.event} does not concern a tool",
                where=where,
                todo="Leave `when` out",
            )
        try:
            condition(str(self.when))
        except UsageError as error:
            raise UsageError(error.found, where=f"{where}, when", todo=error.todo) from None


@dataclass(frozen=True, slots=True)
class Occasion:
    """An event as hooks receive it."""

    event: HookEvent
    turn: int
    """The turn within the conversation; 0 before the first."""
    key: str
    """Its unique key within its lane, identical in each replay: `3:pre_tool_use:toolu_1`."""
    facts: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The payload, JSON. Identical in each replay, so it contains no session IDs and no times."""
    tool: str | None = None
    """The name that conditions match: the tool's, or the sub-agent's."""
    subject: str | None = field(default=None, repr=False)
    """The text that their patterns are compared with."""
    aliases: tuple[str, ...] = ()
    """Older names of the tool."""
    tool_class: ToolClass = "write"
    """The effect of the tool; the subject of a shell tool is parsed as a command."""
    paths: tuple[ResolvedPath, ...] = field(default=(), repr=False)
    """The resolved paths of the call, as in `Call`."""
    hosts: tuple[str, ...] = field(default=(), repr=False)
    """The hosts that the call contacts, as in `Call`."""


def table(*groups: Iterable[Hook]) -> tuple[Hook, ...]:
    """Return the hooks of several sources as one table, in order, each with a unique name.

    Raises:
        UsageError: an entry is not a hook, or two hooks have the same name.
    """
    hooks: list[Hook] = []
    numbers: dict[str, int] = {}
    for hook in (hook for group in groups for hook in group):
        if not isinstance(hook, Hook):
            raise UsageError(
                f"{hook!r} is not a hook", todo="Create one with agentobs.agent.hooks.Hook"
            )
        if not hook.name:
            numbers[hook.source] = numbers.get(hook.source, 0) + 1
            hook = replace(hook, name=f"{hook.source}:{numbers[hook.source]}")
        hooks.append(hook)
    names = [hook.name for hook in hooks]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"two hooks are named {twice}", todo="Rename one of them")
    return tuple(hooks)


@lru_cache(maxsize=1024)
def condition(text: str) -> Rule:
    """Parse a condition as a rule that forbids, so that a doubtful call meets it.

    Raises:
        UsageError: the condition is malformed.
    """
    return Rule.parse(text, "deny", "session")


def _check_run(run: Any, where: str) -> None:
    match run:
        case Command():
            _check_command(run, where)
        case Http():
            _check_url(run.url, where)
            _check_headers(run.headers, where)
        case PromptHook() | AgentHook():
            if not isinstance(run.prompt, str) or not run.prompt.strip():
                raise UsageError("it has no prompt", where=where, todo="State what it must judge")
            if isinstance(run, AgentHook) and not 1 <= run.max_turns <= AGENT_TURNS_MAX:
                raise UsageError(
                    f"it may use {run.max_turns!r} turns",
                    where=where,
                    todo=f"Give 1 to {AGENT_TURNS_MAX}",
                )
        case _ if not callable(run):
            raise UsageError(
                f"{run!r} cannot run",
                where=where,
                todo="Give a function, a Command, an Http, a PromptHook or an AgentHook",
            )


def _check_command(command: Command, where: str) -> None:
    words = (command.run,) if isinstance(command.run, str) else command.run
    todo = 'Write Command(("program", "argument")), or one string for the shell'
    if not words or not all(isinstance(word, str) for word in words) or not words[0].strip():
        raise UsageError(f"{command.run!r} is not a command", where=where, todo=todo)
    if any("\0" in word for word in words):
        raise UsageError("its command contains a null byte", where=where, todo=todo)
    if isinstance(command.keep, str):
        raise UsageError("`keep` is a single string", where=where, todo="Pass a list of names")


def _check_url(url: Any, where: str) -> None:
    try:
        parts = urlsplit(url) if isinstance(url, str) else None
        known = parts is not None and parts.scheme in ("http", "https") and bool(parts.hostname)
        _ = parts.port if parts is not None else None
    except ValueError:
        known = False
    if not known:
        raise UsageError(
            "its URL does not name a server", where=where, todo="Write https://host/path"
        )


def _check_headers(headers: Any, where: str) -> None:
    """Refuse headers that cannot be sent; the error omits values, because they may be credentials."""
    todo = "Pass a mapping of names to ASCII strings without line breaks"
    if not isinstance(headers, Mapping):
        raise UsageError("its headers are not a mapping", where=where, todo=todo)
    for name, value in headers.items():
        for text in (name, value):
            if not isinstance(text, str) or not text.isascii() or not text.isprintable():
                raise UsageError(f"its header {name!r} cannot be sent", where=where, todo=todo)


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value)


def as_json(value: Any) -> str:
    """Return a value as strict JSON text.

    Raises:
        ValueError: the value is not JSON, or contains itself.
    """
    try:
        return json.dumps(value, allow_nan=False, ensure_ascii=False)
    except (TypeError, RecursionError) as error:
        raise ValueError(str(error)) from None
