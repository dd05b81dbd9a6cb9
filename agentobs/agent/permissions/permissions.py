"""The mode, the rules and the blocked hosts of one session, as one frozen value."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from agentobs.agent.permissions.globs import HOLE, fits, path_covers
from agentobs.agent.permissions.hosts import is_host_pattern
from agentobs.agent.permissions.interpreters import is_wide
from agentobs.agent.permissions.modes import MODES, PERMISSIVE, Mode
from agentobs.agent.permissions.rules import Behavior, Rule, order
from agentobs.errors import UsageError

_RANK: dict[Behavior, int] = {"deny": 0, "ask": 1, "allow": 2}


@dataclass(frozen=True, slots=True)
class Shadowed:
    """A rule that never has an effect, because another rule always takes precedence over it."""

    rule: Rule
    by: Rule
    sentence: str
    """An explanation for the user."""


@dataclass(frozen=True, slots=True)
class Permissions:
    """The permissions of a session."""

    mode: Mode = "default"
    rules: tuple[Rule, ...] = ()
    """Rules from all sources; their order has no meaning."""
    blocked_hosts: tuple[str, ...] = ()
    """Hosts that no call may contact, regardless of mode and rules: names, `*.` followed by a name (all of its
    subdomains), addresses, networks such as `10.0.0.0/8`, or `*`.
    """
    bypass_confirmed: bool = False
    """Whether a person has confirmed at the start that the mode `bypassPermissions` is intended."""
    shell_tools: tuple[str, ...] = ("bash", "shell")
    """Names of the tools that run commands. They are used only to report rules without effect; decisions use the class
    of the tool.
    """

    def __post_init__(self) -> None:
        """Validate the fields.

        Raises:
            UsageError: the mode is unknown or not confirmed, or a rule or a host is invalid.
        """
        if self.mode not in MODES:
            raise UsageError(
                f"{self.mode!r} is not a permission mode", todo=f"Use one of {', '.join(MODES)}"
            )
        if self.mode == "bypassPermissions" and self.bypass_confirmed is not True:
            raise UsageError(
                "the mode bypassPermissions runs all tools without approval, and must be confirmed",
                todo="Pass bypass_confirmed=True only on a machine that you can afford to lose; "
                "otherwise use acceptEdits",
            )
        for name in ("rules", "blocked_hosts", "shell_tools"):
            if isinstance(getattr(self, name), str):
                raise UsageError(f"{name} is a single string", todo="Pass a list")
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for rule in self.rules:
            if not isinstance(rule, Rule):
                raise UsageError(f"{rule!r} is not a rule", todo="Create one with Rule.parse")
        for host in self.blocked_hosts:
            if not isinstance(host, str) or not is_host_pattern(host):
                raise UsageError(
                    f"{host!r} in blocked_hosts is not a host",
                    todo="Use a host name, a wildcard such as *.example.com, an IP address or a network",
                )

    @property
    def stripped(self) -> tuple[Rule, ...]:
        """The allow rules that are ignored in this mode, because they would let a shell tool run any program."""
        shell_rules = (
            rule
            for rule in order(self.rules)
            if any(fits(rule.tool.lower(), name.lower()) for name in self.shell_tools)
        )
        return tuple(rule for rule in shell_rules if is_stripped(rule, self.mode))

    def shadowed(self) -> list[Shadowed]:
        """Return the rules that never have an effect, each with the rule that takes precedence.

        Of several equal rules, all are listed except the rule with the strongest source. Every listed rule is without
        effect, but the list may be incomplete.
        """
        ranked = sorted(
            order(list(dict.fromkeys(self.rules))), key=lambda rule: _RANK[rule.behavior]
        )
        found = []
        for index, rule in enumerate(ranked):
            by = next((other for other in ranked if self._hides(other, rule, ranked[:index])), None)
            if by is not None:
                found.append(Shadowed(rule, by, _shadowed_sentence(rule, by)))
        return found

    def unknown(self, tools: Collection[str]) -> list[str]:
        """Return a sentence for each rule that matches no tool, because a deny rule with a typo forbids nothing.

        Args:
            tools: the names of all tools, including their aliases.
        """
        return [
            _unknown_tool_sentence(rule, tools)
            for rule in order(list(dict.fromkeys(self.rules)))
            if not any(applies_to_tool(rule, name) for name in tools)
        ]

    def _hides(self, other: Rule, rule: Rule, before: Sequence[Rule]) -> bool:
        """Return whether a rule never has an effect because the rule `other` is stricter or equivalent.

        Of two equivalent rules, the first takes effect. `before` are the rules before this rule.
        """
        if other == rule or _RANK[other.behavior] > _RANK[rule.behavior]:
            return False
        if not self._covers(other, rule):
            return False
        is_stricter = _RANK[other.behavior] < _RANK[rule.behavior]
        return is_stricter or other in before or not self._covers(rule, other)

    def _covers(self, wide: Rule, narrow: Rule) -> bool:
        if wide.behavior == "allow" and is_stripped(wide, self.mode):
            return False
        if not fits(wide.tool, narrow.tool.replace("*", HOLE)):
            return False
        if wide.is_bare or wide.pattern == narrow.pattern:
            return True
        if narrow.pattern is None or wide.pattern is None or narrow.is_exact or wide.is_exact:
            return False
        return _pattern_covers(wide.pattern, narrow.pattern, narrow.tool in self.shell_tools)


def applies_to_tool(rule: Rule, name: str) -> bool:
    """Return whether a rule applies to the tool with this name.

    Allow rules match the name exactly. Deny and ask rules ignore case.
    """
    if rule.behavior == "allow":
        return fits(rule.tool, name)
    return fits(rule.tool.lower(), name.lower())


def is_stripped(rule: Rule, mode: Mode) -> bool:
    """Return whether an allow rule for a shell tool is ignored in a mode."""
    return rule.behavior == "allow" and mode in PERMISSIVE and is_wide(rule.pattern)


def _pattern_covers(wide: str, narrow: str, is_command: bool) -> bool:
    are_host_patterns = {wide.startswith("host:"), narrow.startswith("host:")}
    are_urls = {"://" in wide, "://" in narrow}
    if not is_command and (True in are_host_patterns or True in are_urls):
        return False
    if not is_command:
        return path_covers(wide, narrow)
    spellings = (wide, wide[:-2]) if wide.endswith(" *") else (wide,)
    return any(fits(each, narrow.replace("*", HOLE)) for each in spellings)


def _shadowed_sentence(rule: Rule, by: Rule) -> str:
    relation = "is equivalent" if by.behavior == rule.behavior else "comes first"
    return (
        f"The {rule.source} rule to {rule.behavior} {rule} never has an effect: "
        f"the {by.source} rule to {by.behavior} {by} {relation}."
    )


def _unknown_tool_sentence(rule: Rule, tools: Collection[str]) -> str:
    by_lower_name = {name.lower(): name for name in sorted(tools)}
    close = difflib.get_close_matches(rule.tool.lower(), by_lower_name, n=1)
    suggestion = f" Did you mean {by_lower_name[close[0]]}?" if close else ""
    return (
        f"The {rule.source.replace('_', ' ')} rule to {rule.behavior} {rule} has no effect: "
        f"there is no tool {rule.tool}.{suggestion}"
    )
