"""Permission rules for tool calls from users, projects or policies, each kept with its source.

A rule is written as `tool` or `tool(pattern)`: `shell(git *)`, `edit(src/**)`,
`fetch(host:*.example.com)`. The meaning of a pattern depends on the call; see `rule_matcher.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from pydantic_core import to_json

from agentobs.errors import UsageError
from agentobs.records.canonical_json import canonical, digest

ToolClass = Literal["read", "edit", "write", "shell"]
"""The effect of a tool: it only reads, it edits files, it changes something else, or it runs commands."""

Source = Literal["policy", "project", "local", "user", "command_line", "session"]
"""The source of a rule: the organization, the project's file, the local file of a checkout, the user's file, the
command-line options, or a person who approved a call during the session.
"""

Behavior = Literal["allow", "deny", "ask"]

SOURCES: tuple[Source, ...] = get_args(Source)
BEHAVIORS: tuple[Behavior, ...] = get_args(Behavior)

EXACT = "="
"""Prefix of a pattern that is compared literally, without special characters."""

EXACT_CALL = "={"
"""Prefix of an exact pattern that identifies one complete call (see `exact_call`). Other exact patterns match a
subject.
"""

_TOOL = re.compile(r"[A-Za-z0-9_.*-]{1,128}\Z")


@dataclass(frozen=True, slots=True)
class Rule:
    """A permission rule: the decision (allow, ask or deny) for the calls that it matches."""

    behavior: Behavior
    tool: str
    """The tool's name, in which `*` matches any characters."""
    pattern: str | None
    """Which calls of the tool match; None matches every call."""
    source: Source

    def __post_init__(self) -> None:
        """Validate the fields.

        Raises:
            UsageError: a field is unknown or empty.
        """
        if self.behavior not in BEHAVIORS:
            raise _error(f"{self.behavior!r} is not a behavior", f"Use {_joined(BEHAVIORS)}")
        if self.source not in SOURCES:
            raise _error(f"{self.source!r} is not a source of rules", f"Use {_joined(SOURCES)}")
        if not isinstance(self.tool, str) or not _TOOL.match(self.tool):
            raise _error(f"{self.tool!r} is not a tool name", _FORMAT_HINT)
        if self.pattern is None:
            return
        if not isinstance(self.pattern, str) or not self.pattern.strip():
            raise _error(f"the rule for {self.tool} has an empty pattern", _FORMAT_HINT)
        if self.pattern.endswith(":*") and "://" not in self.pattern:
            _refuse_colon(self.tool, self.pattern)

    @classmethod
    def parse(cls, text: str, behavior: Behavior, source: Source) -> Rule:
        """Parse a rule such as `shell(git *)`.

        Raises:
            UsageError: the text is malformed.
        """
        if not isinstance(text, str):
            raise _error(f"{text!r} is not a rule", _FORMAT_HINT)
        tool, parenthesis, rest = text.partition("(")
        if not parenthesis:
            if ")" in text or not _TOOL.match(text):
                raise _error(f"{text!r} is not a rule", _FORMAT_HINT)
            return cls(behavior, tool, None, source)
        if not rest.endswith(")"):
            raise _error(f"{text!r} does not end with a closing parenthesis", _FORMAT_HINT)
        return cls(behavior, tool, rest[:-1], source)

    def __str__(self) -> str:
        """Return the text that `parse` accepts."""
        return self.tool if self.pattern is None else f"{self.tool}({self.pattern})"

    @property
    def is_exact(self) -> bool:
        """Whether the pattern is compared literally with the subject or with the complete call."""
        return self.pattern is not None and self.pattern.startswith(EXACT)

    @property
    def is_bare(self) -> bool:
        """Whether the rule matches every call of its tool."""
        return self.pattern is None or self.pattern in ("*", "**")


@dataclass(frozen=True, slots=True)
class ResolvedPath:
    """A path that a call accesses, with symbolic links resolved (see `execution/path_resolution.py`)."""

    path: str
    """The path relative to the first root, with `/`, if it is inside this root; otherwise the absolute path."""
    inside: bool
    """Whether it is inside one of the roots."""


@dataclass(frozen=True, slots=True)
class Call:
    """The facts of a tool call that permissions depend on."""

    tool_use_id: str
    tool: str
    """The tool's current name."""
    tool_class: ToolClass
    subject: str | None = field(default=None, repr=False)
    """The text that patterns are compared with, such as a command or a URL; None if the tool does not define it."""
    aliases: tuple[str, ...] = ()
    """Former names of the tool. Rules for these names still apply."""
    paths: tuple[ResolvedPath, ...] = field(default=(), repr=False)
    """Every path that the call accesses."""
    hosts: tuple[str, ...] = field(default=(), repr=False)
    """Every host that the call contacts, as a host name, an address or a URL."""
    needs_permission: bool = True
    """False if the author of the tool declares that it may run without approval, for example a to-do list."""
    destructive: bool = True
    """Whether the changes of the call may be permanent. This field has no meaning for calls that only read."""
    read_only: bool = False
    """Whether the tool declares for this input that the call only reads, although other calls of the tool do not. The
    class of the tool still determines how rules are matched.
    """
    input: dict[str, Any] = field(default_factory=dict, repr=False)
    """The tool's validated input."""


def exact_call(call: Call) -> str | None:
    """Return a text that identifies a call among all calls of its tool; None if the input is not JSON.

    The text contains a digest of the complete input, because the person who approves the call sees all of it, and
    arguments that are not in the subject may matter. It also contains the resolved paths and the hosts, so a link that
    points to another target later results in another text.
    """
    try:
        input_text = canonical(json.loads(to_json(call.input, bytes_mode="base64")))
    except (
        ValueError,
        RecursionError,
    ):  # a value without a JSON representation, or a circular value
        return None
    identity: dict[str, Any] = {"input": digest(input_text.encode("utf-8", "surrogatepass"))}
    if call.paths:
        identity["paths"] = [path.path for path in call.paths]
    if call.hosts:
        identity["hosts"] = list(call.hosts)
    return canonical(identity)


def exact_subject(call: Call) -> str | None:
    """Return the subject for comparison with an exact rule; None if the subject does not identify the call."""
    subject = call.subject
    if subject is None or call.paths or call.hosts or subject.startswith("{"):
        return None
    return subject


def order(rules: Sequence[Rule]) -> list[Rule]:
    """Sort rules by source, text and behavior."""
    return sorted(rules, key=lambda rule: (SOURCES.index(rule.source), str(rule), rule.behavior))


_FORMAT_HINT = "Write a rule as `tool` or `tool(pattern)`, such as `shell(git *)` or `edit(src/**)`"


def _refuse_colon(tool: str, pattern: str) -> None:
    if pattern.startswith(EXACT) or pattern == "host:*":
        return
    prefix = pattern.removesuffix(":*")
    raise _error(
        f"{tool}({pattern}) uses the syntax of another program and would never match",
        f"Write `{tool}({prefix} *)` for calls that start with it",
    )


def _error(found: str, todo: str) -> UsageError:
    return UsageError(found, todo=todo)


def _joined(names: Sequence[str]) -> str:
    return ", ".join(names)
