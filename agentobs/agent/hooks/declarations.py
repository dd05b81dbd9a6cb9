"""Hooks: what may run when something happens to an agent, and the one table that holds them.

Code, settings and the session each add hooks; `table` puts them together. `docs/hooks.md` tells what each event
hands to a hook, and what its answer may do.
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
"""What a hook may be asked about."""

EVENTS: tuple[HookEvent, ...] = get_args(HookEvent)

Effect = Literal["block", "decision", "input", "output", "context", "stop"]
"""What an answer may do: keep it from happening; decide on the call in a person's place; change a tool's input;
change its output; tell the model something; end the run."""

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
"""What the answer to each event may do; anything else in it is a fault of the hook, and does nothing."""

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
"""Events about a tool call, or about a sub-agent, whose name then stands for the tool: they take conditions."""

AGENT_TURNS_MAX = 50
"""The most turns of an agent hook."""


@dataclass(frozen=True, slots=True)
class Command:
    """A program that gets the payload on standard input and may print its answer, a JSON object."""

    run: str | tuple[str, ...]
    """The program and its arguments; one text is a line for `/bin/sh`."""
    keep: tuple[str, ...] = ()
    """Environment variables that it gets although they look like credentials."""


@dataclass(frozen=True, slots=True)
class Http:
    """A server that gets the payload in a POST and may answer with a JSON object."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Sent with the first request, and with none that a redirect leads to at another origin."""
    proxy: str | None = field(default=None, repr=False)
    """Asks through this proxy, which hides the target: nothing is checked then. Never read from the environment."""


@dataclass(frozen=True, slots=True)
class PromptHook:
    """One call of a small model, which judges what happens."""

    prompt: str
    """What it shall judge; the payload follows it as JSON."""
    model: str | None = None
    """Whom to ask; default the hook model of the live world."""


@dataclass(frozen=True, slots=True)
class AgentHook:
    """An agent that may look around with tools which only read, before it judges what happens."""

    prompt: str
    """What it shall judge; the payload follows it as JSON."""
    model: str | None = None
    """Whom to ask; default the hook model of the live world."""
    tools: tuple[str, ...] | None = None
    """Names of the tools that it gets; default all of the live world that only read. No others are given."""
    max_turns: int = AGENT_TURNS_MAX
    """After so many turns without an answer it is cancelled; at most 50."""
    permissions: Permissions = field(default_factory=lambda: Permissions(mode="dontAsk"))
    """What it may do with its tools: those of the agent do not hold for it. It can ask nobody."""


Function = Callable[[Json], Any]
"""Gets the payload; returns an answer's object, a `HookAnswer` or None. Plain (run in a thread) or async."""

Run = Function | Command | Http | PromptHook | AgentHook


@dataclass(frozen=True, slots=True)
class Hook:
    """Something that runs when something happens."""

    event: HookEvent
    run: Run
    when: str | None = None
    """Only for these: `tool` or `tool(pattern)`, as in a rule of permission that forbids."""
    name: str = ""
    """Its name in the table, a label; where it has none `table` gives one, from the source and a number."""
    once: bool = False
    """Whether it is asked at most once in a conversation."""
    background: bool = False
    """Whether nobody waits for it: what it answers then does nothing."""
    timeout_s: float | None = None
    """How long it may take, in seconds; None for what is usual for its kind."""
    source: str = "code"
    """Who added it, a label: `code`, `settings`, `session` or another name."""

    def __post_init__(self) -> None:
        """Refuse what could never run.

        Raises:
            UsageError: a part is unknown, or does not fit the others.
        """
        where = f"hook {self.name or self.event}"
        if self.event not in EVENTS:
            raise UsageError(
                f"{self.event!r} is no event of hooks", todo=f"Use one of {', '.join(EVENTS)}"
            )
        for text, what in ((self.name or "hook", "name"), (self.source, "source")):
            if not isinstance(text, str) or not is_label(text):
                raise UsageError(
                    f"its {what} {text!r} is no label",
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
                f"it has a condition, and {self.event} is about no tool",
                where=where,
                todo="Leave `when` out",
            )
        try:
            condition(str(self.when))
        except UsageError as error:
            raise UsageError(error.found, where=f"{where}, when", todo=error.todo) from None


@dataclass(frozen=True, slots=True)
class Occasion:
    """Something that happens, as hooks are told of it."""

    event: HookEvent
    turn: int
    """The turn within the conversation; 0 before the first."""
    key: str
    """What tells it from all others of its lane, the same in each replay: `3:pre_tool_use:toolu_1`."""
    facts: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """What hooks are told, JSON; the same in each replay, so without ids of the session and without times."""
    tool: str | None = None
    """What conditions are about: the tool's name, or the sub-agent's."""
    subject: str | None = field(default=None, repr=False)
    """What their patterns are compared with."""
    aliases: tuple[str, ...] = ()
    """Older names of the tool."""
    tool_class: ToolClass = "write"
    """What the tool does; a shell's subject is read as a command."""
    paths: tuple[ResolvedPath, ...] = field(default=(), repr=False)
    """Where the call's paths lead, as in `Call`."""
    hosts: tuple[str, ...] = field(default=(), repr=False)
    """The hosts that the call speaks to, as in `Call`."""


def table(*groups: Iterable[Hook]) -> tuple[Hook, ...]:
    """Return the hooks of several sources as one table, in their order, each with a name of its own.

    Raises:
        UsageError: something is no hook, or two have one name.
    """
    hooks: list[Hook] = []
    numbers: dict[str, int] = {}
    for hook in (hook for group in groups for hook in group):
        if not isinstance(hook, Hook):
            raise UsageError(f"{hook!r} is no hook", todo="Make one with agentobs.agent.hooks.Hook")
        if not hook.name:
            numbers[hook.source] = numbers.get(hook.source, 0) + 1
            hook = replace(hook, name=f"{hook.source}:{numbers[hook.source]}")
        hooks.append(hook)
    names = [hook.name for hook in hooks]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"two hooks are named {twice}", todo="Give one of them another name")
    return tuple(hooks)


@lru_cache(maxsize=1024)
def condition(text: str) -> Rule:
    """Return a condition as the rule that it is: one that forbids, so that what is in doubt is met.

    Raises:
        UsageError: it has another form.
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
                raise UsageError("it has no prompt", where=where, todo="Say what it shall judge")
            if isinstance(run, AgentHook) and not 1 <= run.max_turns <= AGENT_TURNS_MAX:
                raise UsageError(
                    f"it may take {run.max_turns!r} turns",
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
    todo = 'Write Command(("program", "argument")), or one text for the shell'
    if not words or not all(isinstance(word, str) for word in words) or not words[0].strip():
        raise UsageError(f"{command.run!r} is no command", where=where, todo=todo)
    if any("\0" in word for word in words):
        raise UsageError("its command holds a zero byte", where=where, todo=todo)
    if isinstance(command.keep, str):
        raise UsageError("`keep` is one text", where=where, todo="Pass a list of names")


def _check_url(url: Any, where: str) -> None:
    try:
        parts = urlsplit(url) if isinstance(url, str) else None
        known = parts is not None and parts.scheme in ("http", "https") and bool(parts.hostname)
        _ = parts.port if parts is not None else None
    except ValueError:
        known = False
    if not known:
        raise UsageError(
            "its address is none of a server", where=where, todo="Write https://host/path"
        )


def _check_headers(headers: Any, where: str) -> None:
    """Refuse headers that cannot be sent; the error names no value, for it may be a credential."""
    todo = "Give texts in ASCII without line ends, by name"
    if not isinstance(headers, Mapping):
        raise UsageError("its headers are no mapping", where=where, todo=todo)
    for name, value in headers.items():
        for text in (name, value):
            if not isinstance(text, str) or not text.isascii() or not text.isprintable():
                raise UsageError(f"its header {name!r} cannot be sent", where=where, todo=todo)


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value)


def as_json(value: Any) -> str:
    """Return a value as JSON text, as strictly as others will read it.

    Raises:
        ValueError: it is no JSON, or holds itself.
    """
    try:
        return json.dumps(value, allow_nan=False, ensure_ascii=False)
    except (TypeError, RecursionError) as error:
        raise ValueError(str(error)) from None
