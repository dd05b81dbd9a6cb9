"""Declarations of hooks, and the table that contains them.

Code, settings and the session can each add hooks; `table` merges them. `docs/hooks.md` describes the payload of each
event and the effects that an answer may have.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

from agentobs.agent.arguments import described
from agentobs.agent.permissions import Permissions, ResolvedPath, Rule, ToolClass
from agentobs.errors import UsageError
from agentobs.records.canonical_json import Json
from agentobs.records.labels import is_label

HookEvent = Literal[
    "session_start",
    "session_end",
    "user_prompt_submit",
    "pre_request",
    "pre_tool_use",
    "post_tool_use",
    "post_tool_use_failure",
    "invalid_tool_call",
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

Effect = Literal["block", "decision", "input", "output", "messages", "context", "stop"]
"""The possible effects of a hook's answer: block the event; decide on the call in place of a person; change the input
of a tool; change its output, or answer in its place; replace the messages of a
request; add context for the model; stop the run.
"""

ALLOWED_EFFECTS: Mapping[HookEvent, frozenset[Effect]] = {
    "session_start": frozenset({"context", "stop"}),
    "session_end": frozenset(),
    "user_prompt_submit": frozenset({"block", "context", "stop"}),
    "pre_request": frozenset({"messages", "context"}),
    "pre_tool_use": frozenset({"block", "decision", "input", "output", "context", "stop"}),
    "post_tool_use": frozenset({"block", "output", "context", "stop"}),
    "post_tool_use_failure": frozenset({"block", "output", "context", "stop"}),
    "invalid_tool_call": frozenset({"context", "stop"}),
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
"""The allowed effects for each event. Any other effect in an answer is ignored, and counts as an error of the hook."""

CONDITIONAL: frozenset[HookEvent] = frozenset(
    {
        "pre_tool_use",
        "post_tool_use",
        "post_tool_use_failure",
        "invalid_tool_call",
        "permission_request",
        "permission_denied",
        "sub_agent_start",
        "sub_agent_stop",
    }
)
"""The events whose hooks may have conditions: events of a tool call, and events of a sub-agent, for which conditions
match the sub-agent's name instead of a tool's name.
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
    """The headers of the request. They are not sent after a redirect to another origin."""
    proxy: str | None = field(default=None, repr=False)
    """The proxy for the request; never read from the environment. The proxy connects to the server, so the server's
    addresses are not checked.
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
    """Names of its tools, which must be read-only tools of the live world; defaults to all read-only tools."""
    max_turns: int = AGENT_TURNS_MAX
    """Maximum number of turns, at most 50. If the hook has not answered by then, it is cancelled."""
    permissions: Permissions = field(default_factory=lambda: Permissions(mode="dontAsk"))
    """Permissions for its tools, independent of the permissions of the agent that triggers the hook. The hook cannot
    request approval.
    """


Function = Callable[[Json], Any]
"""A hook function. It receives the payload, and returns a dict, a `HookAnswer` or None. May be sync, which runs in a
thread, or async.
"""

Run = Function | Command | Http | PromptHook | AgentHook


@dataclass(frozen=True, slots=True)
class Hook:
    """The declaration of a hook: an event, and the function, program, server or model that runs when it occurs."""

    event: HookEvent
    run: Run
    when: str | None = None
    """A condition, written like a deny rule: `tool` or `tool(pattern)`. The hook runs only for matching calls."""
    name: str = ""
    """Its name in the table, a label; if empty, `table` derives one from the source and a number."""
    once: bool = False
    """Whether it runs at most once per conversation."""
    background: bool = False
    """Whether the hook runs in the background. The agent does not wait for it, and its answer has no effect."""
    timeout_s: float | None = None
    """Timeout in seconds; None uses the default for this kind of hook."""
    source: str = "code"
    """Where the hook was declared, a label: `code`, `settings`, `session` or another name."""

    def __post_init__(self) -> None:
        """Validate the fields.

        Raises:
            UsageError: a field is invalid, or contradicts another field.
        """
        where = f"hook {self.name or self.event}"
        if self.event not in EVENTS:
            raise UsageError(
                f"{self.event!r} is not a hook event", todo=f"Use one of {', '.join(EVENTS)}"
            )
        for text, what in ((self.name or "hook", "name"), (self.source, "source")):
            if not isinstance(text, str) or not is_label(text):
                raise UsageError(
                    f"the {what} {text!r} is not a label",
                    where=where,
                    todo="Use A-Z a-z 0-9 . _ : / @ -",
                )
        if self.when is not None:
            self._check_condition(where)
        for flag in ("once", "background"):
            if not isinstance(getattr(self, flag), bool):
                raise UsageError(
                    f"{flag} is {getattr(self, flag)!r}",
                    where=where,
                    todo="Pass True or False",
                )
        limit = self.timeout_s
        if limit is not None and not (_is_number(limit) and limit > 0):
            raise UsageError(
                f"timeout_s is {limit!r}",
                where=where,
                todo="Pass seconds above 0",
            )
        _check_run(self.run, where)

    def _check_condition(self, where: str) -> None:
        if self.event not in CONDITIONAL:
            raise UsageError(
                f"`when` applies only to events of tools and sub-agents, not to {self.event}",
                where=where,
                todo="Remove `when`",
            )
        try:
            condition(str(self.when))
        except UsageError as error:
            raise UsageError(error.found, where=f"{where}, when", todo=error.todo) from None


@dataclass(frozen=True, slots=True)
class Occasion:
    """One occurrence of an event, for which hooks run."""

    event: HookEvent
    turn: int
    """The turn within the conversation; 0 before the first turn."""
    key: str
    """A key that is unique within the lane and identical in each replay, such as `3:pre_tool_use:toolu_1`."""
    facts: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The payload as JSON. It is identical in each replay, so it contains no session IDs and no times."""
    tool: str | None = None
    """The name that conditions match: the name of the tool or the sub-agent."""
    subject: str | None = field(default=None, repr=False)
    """The text that the patterns of conditions are compared with."""
    aliases: tuple[str, ...] = ()
    """Older names of the tool."""
    tool_class: ToolClass = "write"
    """The class of the tool. If it is `shell`, the subject is parsed as a command."""
    paths: tuple[ResolvedPath, ...] = field(default=(), repr=False)
    """The resolved paths of the call, as in `Call`."""
    hosts: tuple[str, ...] = field(default=(), repr=False)
    """The hosts that the call contacts, as in `Call`."""


def table(*groups: Iterable[Hook]) -> tuple[Hook, ...]:
    """Return the hooks of several sources as one table, in order, each with a unique name.

    Raises:
        UsageError: a group is not a list, an entry is not a hook, a hook is given twice, or two hooks have
            the same name.
    """
    for group in groups:
        if not isinstance(group, Iterable) or isinstance(group, str | bytes):
            raise UsageError(
                f"expected a list, got {described(group)}",
                where="hooks",
                todo="Pass a list of agentobs.agent.Hook",
            )
    hooks: list[Hook] = []
    given: list[Hook] = []
    numbers: dict[str, int] = {}
    for hook in (hook for group in groups for hook in group):
        if not isinstance(hook, Hook):
            raise UsageError(
                f"{hook!r} is not a hook", todo="Create one with agentobs.agent.hooks.Hook"
            )
        if hook in given:
            raise UsageError(
                f"the same hook is given twice: {hook.name or hook.event}",
                todo="Pass each hook once, or give each its own name",
            )
        given.append(hook)
        if not hook.name:
            numbers[hook.source] = numbers.get(hook.source, 0) + 1
            hook = replace(hook, name=f"{hook.source}:{numbers[hook.source]}")
        hooks.append(hook)
    names = [hook.name for hook in hooks]
    duplicate = next((name for name in names if names.count(name) > 1), None)
    if duplicate is not None:
        raise UsageError(f"two hooks are named {duplicate}", todo="Rename one of them")
    return tuple(hooks)


@lru_cache(maxsize=1024)
def condition(text: str) -> Rule:
    """Parse a condition as a deny rule, so that a doubtful match counts as a match.

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
                raise UsageError(
                    "prompt is empty", where=where, todo="Pass the instructions for the model"
                )
            if isinstance(run, AgentHook) and not 1 <= run.max_turns <= AGENT_TURNS_MAX:
                raise UsageError(
                    f"max_turns is {run.max_turns!r}",
                    where=where,
                    todo=f"Pass 1 to {AGENT_TURNS_MAX}",
                )
        case _ if not callable(run):
            raise UsageError(
                f"{run!r} cannot run",
                where=where,
                todo="Pass a function, a Command, an Http, a PromptHook or an AgentHook",
            )


def _check_command(command: Command, where: str) -> None:
    words = (command.run,) if isinstance(command.run, str) else command.run
    todo = 'Write Command(("program", "argument")), or one string for the shell'
    if not words or not all(isinstance(word, str) for word in words) or not words[0].strip():
        raise UsageError(f"{command.run!r} is not a command", where=where, todo=todo)
    if any("\0" in word for word in words):
        raise UsageError("the command contains a null byte", where=where, todo=todo)
    if isinstance(command.keep, str):
        raise UsageError("`keep` is a single string", where=where, todo="Pass a list of names")


def _check_url(url: Any, where: str) -> None:
    try:
        parts = urlsplit(url) if isinstance(url, str) else None
        is_valid = parts is not None and parts.scheme in ("http", "https") and bool(parts.hostname)
        _ = parts.port if parts is not None else None
    except ValueError:
        is_valid = False
    if not is_valid:
        raise UsageError(
            "the URL does not name a server", where=where, todo="Write https://host/path"
        )


def _check_headers(headers: Any, where: str) -> None:
    """Raise a UsageError for headers that cannot be sent.

    The error omits the values, because they may be credentials.
    """
    todo = "Pass a mapping of names to ASCII strings without line breaks"
    if not isinstance(headers, Mapping):
        raise UsageError("headers must be a mapping", where=where, todo=todo)
    for name, value in headers.items():
        for text in (name, value):
            if not isinstance(text, str) or not text.isascii() or not text.isprintable():
                raise UsageError(f"the header {name!r} cannot be sent", where=where, todo=todo)


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
