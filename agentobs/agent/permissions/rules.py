"""Rules: what a person, a project or a policy says about calls of a tool, each kept with its source.

A rule is written as `tool` or `tool(pattern)`: `shell(git *)`, `edit(src/**)`, `fetch(host:*.example.com)`.
What a pattern means depends on the call, see `matching.py`.
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
"""What a tool does to the outside: reads it, edits files, changes something else, runs commands."""

Source = Literal["policy", "project", "local", "user", "command_line", "session"]
"""Who wrote a rule: the organisation, the project's file, this checkout's own file, the person's file,
the options of this start, a person who answered while it ran."""

Behaviour = Literal["allow", "deny", "ask"]

SOURCES: tuple[Source, ...] = get_args(Source)
BEHAVIOURS: tuple[Behaviour, ...] = get_args(Behaviour)

EXACT = "="
"""A pattern that starts so is compared letter by letter; no character of it means another."""

WHOLE = "={"
"""An exact pattern that starts so stands for one whole call (see `exact`); any other for one subject."""

_TOOL = re.compile(r"[A-Za-z0-9_.*-]{1,128}\Z")


@dataclass(frozen=True, slots=True)
class Rule:
    """What shall happen to the calls that it matches."""

    behaviour: Behaviour
    tool: str
    """The tool's name; a `*` in it stands for any letters."""
    pattern: str | None
    """Which calls of the tool; None means every one."""
    source: Source

    def __post_init__(self) -> None:
        """Refuse what could never be meant.

        Raises:
            UsageError: a part is unknown or empty.
        """
        if self.behaviour not in BEHAVIOURS:
            raise _wrong(f"{self.behaviour!r} is no behaviour", f"Use {_listed(BEHAVIOURS)}")
        if self.source not in SOURCES:
            raise _wrong(f"{self.source!r} is no source of rules", f"Use {_listed(SOURCES)}")
        if not isinstance(self.tool, str) or not _TOOL.match(self.tool):
            raise _wrong(f"{self.tool!r} is no name of a tool", _FORM)
        if self.pattern is None:
            return
        if not isinstance(self.pattern, str) or not self.pattern.strip():
            raise _wrong(f"the rule for {self.tool} has an empty pattern", _FORM)
        if self.pattern.endswith(":*") and "://" not in self.pattern:
            _refuse_colon(self.tool, self.pattern)

    @classmethod
    def parse(cls, text: str, behaviour: Behaviour, source: Source) -> Rule:
        """Return the rule that a text such as `shell(git *)` states.

        Raises:
            UsageError: the text has another form.
        """
        if not isinstance(text, str):
            raise _wrong(f"{text!r} is no rule", _FORM)
        tool, bracket, rest = text.partition("(")
        if not bracket:
            if ")" in text or not _TOOL.match(text):
                raise _wrong(f"{text!r} is no rule", _FORM)
            return cls(behaviour, tool, None, source)
        if not rest.endswith(")"):
            raise _wrong(f"{text!r} has no closing bracket at its end", _FORM)
        return cls(behaviour, tool, rest[:-1], source)

    def __str__(self) -> str:
        """Return the text that `parse` reads."""
        return self.tool if self.pattern is None else f"{self.tool}({self.pattern})"

    @property
    def is_exact(self) -> bool:
        """Whether it is compared letter by letter: with a call's subject, or with the whole of it."""
        return self.pattern is not None and self.pattern.startswith(EXACT)

    @property
    def is_bare(self) -> bool:
        """Whether it stands for every call of its tool."""
        return self.pattern is None or self.pattern in ("*", "**")


@dataclass(frozen=True, slots=True)
class ResolvedPath:
    """A path that a call touches, with symbolic links followed (see `agent/paths.py`)."""

    path: str
    """Relative to the first root where it lies in it, with `/`; else absolute."""
    inside: bool
    """Whether it lies in one of the roots."""


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call as permissions see it."""

    tool_use_id: str
    tool: str
    """The tool's name today."""
    tool_class: ToolClass
    subject: str | None = field(default=None, repr=False)
    """What patterns are compared with: the command, the path, the URL; None where the tool names none."""
    aliases: tuple[str, ...] = ()
    """Older names of the tool; rules that were written for them hold."""
    paths: tuple[ResolvedPath, ...] = field(default=(), repr=False)
    """Every path that the call touches."""
    hosts: tuple[str, ...] = field(default=(), repr=False)
    """Every host that the call speaks to, as a host name or as a URL."""
    needs_permission: bool = True
    """False where the tool's author says that it may run unasked, as a list of things to do."""
    destructive: bool = True
    """Whether what it changes cannot be brought back; of no meaning for tools that only read."""
    input: dict[str, Any] = field(default_factory=dict, repr=False)
    """The tool's input, validated."""


def exact(call: Call) -> str | None:
    """Return the text that stands for this call and for no other of its tool; None where there is none.

    It holds a digest of the whole input, for a person who is asked sees all of it, and what the subject
    leaves out may be what matters; and where the paths lead and which hosts are meant, so that a link that
    points elsewhere tomorrow makes another text.
    """
    try:
        seen = canonical(json.loads(to_json(call.input, bytes_mode="base64")))
    except (ValueError, RecursionError):  # a value without a text of its own, or none that ends
        return None
    named: dict[str, Any] = {"input": digest(seen.encode("utf-8", "surrogatepass"))}
    if call.paths:
        named["paths"] = [path.path for path in call.paths]
    if call.hosts:
        named["hosts"] = list(call.hosts)
    return canonical(named)


def exact_subject(call: Call) -> str | None:
    """Return the subject as an exact rule names it; None where a call is more than its subject says."""
    subject = call.subject
    if subject is None or call.paths or call.hosts or subject.startswith("{"):
        return None
    return subject


def order(rules: Sequence[Rule]) -> list[Rule]:
    """Return rules in an order that does not depend on the order in which they were given."""
    return sorted(rules, key=lambda rule: (SOURCES.index(rule.source), str(rule), rule.behaviour))


_FORM = "Write a rule as `tool` or `tool(pattern)`, such as `shell(git *)` or `edit(src/**)`"


def _refuse_colon(tool: str, pattern: str) -> None:
    if pattern.startswith(EXACT) or pattern == "host:*":
        return
    meant = pattern.removesuffix(":*")
    raise _wrong(
        f"{tool}({pattern}) uses a form of other programs, and would match nothing",
        f"Write `{tool}({meant} *)` for calls that start so",
    )


def _wrong(found: str, todo: str) -> UsageError:
    return UsageError(found, todo=todo)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)
