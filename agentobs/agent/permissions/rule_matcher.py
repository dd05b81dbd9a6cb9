"""Match rules against calls.

A pattern is compared with the target of the call:
- If the tool runs commands: with each command in the text, word by word. `git *` matches `git` with any arguments.
- If the pattern starts with `host:`: with the hosts that the call contacts.
- If the pattern contains `://`: with the URL.
- If the call has paths: with the resolved paths, relative to the root, never with the text that the model wrote.
- Otherwise: with the subject of the call. `*` matches any characters.

Forbidding and allowing are asymmetric. A rule forbids a call if any part of the call matches. Rules allow a call only
if every part of the call matches a rule and nothing is in doubt.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentobs.agent.permissions.globs import (
    GAP,
    HOLE,
    fits,
    may_fit,
    normalized,
    path_fits,
    path_or_parent_fits,
)
from agentobs.agent.permissions.hosts import (
    Match,
    host_fits,
    host_may_fit,
    interpretations,
    url_fits,
)
from agentobs.agent.permissions.permissions import applies_to_tool
from agentobs.agent.permissions.rules import EXACT_CALL, Call, Rule, exact_call, exact_subject
from agentobs.agent.permissions.shell import ParsedCommands, read_command

_UNKNOWN_WORD = re.compile(f"^{HOLE}+(?: |$)| {HOLE}+(?= |$)")
"""A word that consists of unknown values, with one adjacent blank."""


@dataclass(frozen=True, slots=True)
class CallView:
    """A call with all values that rules are compared with. It is created once for all rules."""

    call: Call
    commands: ParsedCommands | None
    """The commands of a shell call; None for other calls."""
    written: tuple[str, ...] = ()
    """The complete text, and every form of every command as written."""
    known: tuple[str, ...] = ()
    """The forms with holes for unknown values. If a word may be empty, its hole includes the adjacent blank."""

    @classmethod
    def of(cls, call: Call) -> CallView:
        """Return the view of a call that rules are matched against."""
        if call.tool_class != "shell" or call.subject is None:
            return cls(call, None)
        commands = read_command(call.subject)
        forms = [form for part in commands.parts for form in (part.form, *part.hidden)]
        written = dict.fromkeys([call.subject.strip(), *(form.written for form in forms)])
        known = dict.fromkeys(
            _UNKNOWN_WORD.sub(HOLE, form.known.replace(GAP, " ")) for form in forms
        )
        return cls(call, commands, tuple(written), tuple(known))

    @property
    def doubt(self) -> str | None:
        """Why no rule with a pattern can allow the call; None if a rule can."""
        return None if self.commands is None else self.commands.doubt


def applies_to(rule: Rule, call: Call) -> bool:
    """Return whether a rule applies to the tool of a call, by the tool's name or an alias."""
    return any(applies_to_tool(rule, name) for name in (call.tool, *call.aliases))


def forbids(rule: Rule, view: CallView) -> Match:
    """Return whether a deny or ask rule matches a call; `doubt` if it may."""
    call, pattern = view.call, rule.pattern
    if not applies_to(rule, call):
        return "no"
    if pattern is None or rule.is_bare:
        return "yes"
    if rule.is_exact:
        return _match_if(pattern[1:] in (call.subject, exact_call(call)))
    if view.commands is not None:
        return _command_forbidden(pattern, view, view.commands)
    if pattern.startswith("host:"):
        return _hosts_forbidden(pattern[5:], call.hosts)
    if "://" in pattern and call.subject is not None:
        return _url_forbidden(pattern, call.subject)
    if call.paths:
        return _match_if(any(path_or_parent_fits(pattern, path.path) for path in call.paths))
    if call.subject is None:
        return "doubt"
    return _match_if(fits(normalized(pattern), normalized(call.subject)))


def allowing_rules(rules: Sequence[Rule], view: CallView) -> tuple[Rule, ...]:
    """Return the rules that together allow the complete call: the first matching rule for each part of the call.

    The result is empty if the rules do not allow the call.
    """
    applicable = [rule for rule in rules if applies_to(rule, view.call)]
    for rule in applicable:
        if rule.is_bare or _matches_exactly(rule, view.call):
            return (rule,)
    if view.commands is not None:
        if view.doubt is not None:
            return ()
        known = [part.form.known for part in view.commands.parts]
        return _rule_for_each(applicable, known, _command_allowed)
    return _allowing_parts(applicable, view.call)


def _allowing_parts(rules: Sequence[Rule], call: Call) -> tuple[Rule, ...]:
    of_hosts = [rule for rule in rules if (rule.pattern or "").startswith("host:")]
    of_urls = [rule for rule in rules if "://" in (rule.pattern or "")]
    others = [rule for rule in rules if rule not in of_hosts and rule not in of_urls]
    subject = [] if call.subject is None else [call.subject]
    return (
        _rule_for_each(of_hosts, call.hosts, lambda pattern, host: host_fits(pattern[5:], host))
        or _rule_for_each(of_urls, subject, lambda pattern, url: url_fits(pattern, url) == "yes")
        or _rule_for_each(others, [path.path for path in call.paths], path_fits)
        or (() if call.paths else _rule_for_each(others, subject, fits))
    )


def _rule_for_each(
    rules: Sequence[Rule], parts: Sequence[str], is_allowed: Callable[[str, str], bool]
) -> tuple[Rule, ...]:
    found = []
    for part in parts:
        rule = next((rule for rule in rules if is_allowed(rule.pattern or "", part)), None)
        if rule is None:
            return ()
        found.append(rule)
    return tuple(dict.fromkeys(found))


def _matches_exactly(rule: Rule, call: Call) -> bool:
    pattern = rule.pattern or ""
    if rule.is_exact:
        return pattern[1:] == (
            exact_call(call) if pattern.startswith(EXACT_CALL) else exact_subject(call)
        )
    return call.tool_class == "shell" and "*" not in pattern and pattern == call.subject


def _command_allowed(pattern: str, known: str) -> bool:
    # In a pattern, a star in quotes is a literal star. Without the quotes, the rule would allow more.
    plain = pattern if "*" in pattern else _unquoted(pattern, GAP)
    without_unknown = _UNKNOWN_WORD.sub(
        "", known
    )  # an unknown value may be empty, so that its word is absent
    return any(
        fits(each, known) and any(fits(other, without_unknown) for other in _spellings(plain))
        for each in _spellings(plain)
    )


def _command_forbidden(pattern: str, view: CallView, commands: ParsedCommands) -> Match:
    wanted = {*_spellings(_unquoted(pattern, " ")), *_spellings(pattern)}
    if any(fits(each, text) for each in wanted for text in view.written):
        return "yes"
    if commands.is_guess or any(may_fit(each, text) for each in wanted for text in view.known):
        return "doubt"
    return "no"


def _spellings(pattern: str) -> tuple[str, ...]:
    """Return the spellings of a pattern, because `git *` also matches `git` alone."""
    return (pattern, pattern[:-2]) if pattern.endswith(" *") and pattern[:-2] else (pattern,)


def _unquoted(pattern: str, blank: str) -> str:
    """Normalize the words of a pattern like the words of a command: unquoted, and separated by one blank."""
    if not re.search(r"[\\'\"]", pattern):
        return " ".join(pattern.split())
    try:
        words = shlex.split(pattern)
    except ValueError:
        return pattern
    return " ".join(word.replace(" ", blank) for word in words)


def _hosts_forbidden(pattern: str, hosts: Sequence[str]) -> Match:
    if any(host_may_fit(pattern, host) for host in hosts):
        return "yes"
    return "no" if all(interpretations(host) for host in hosts) else "doubt"


def _url_forbidden(pattern: str, url: str) -> Match:
    if fits(pattern.lower(), url.lower()):
        return "yes"
    return url_fits(pattern, url)


def _match_if(matches: bool) -> Match:
    return "yes" if matches else "no"
