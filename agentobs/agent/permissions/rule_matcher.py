"""Match rules against calls.

A pattern is compared with the target of the call:
- a command: word by word, each command of a compound one separately; `git *` matches `git` with any
  arguments;
- `host:` and a name: the hosts that the call contacts;
- a pattern with `://`: the URL;
- paths: the resolved paths, relative to the root, never the text that the model wrote;
- anything else: the call's subject, in which `*` matches any characters.

Forbidding and allowing are asymmetric. A rule forbids a call if any part of it matches. Rules allow a call only if
every part matches one of them and nothing is in doubt.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentobs.agent.permissions.globs import (
    GAP,
    HOLE,
    alike,
    fits,
    may_fit,
    path_fits,
    path_or_parent_fits,
)
from agentobs.agent.permissions.hosts import Match, host_fits, host_may_fit, readings, url_fits
from agentobs.agent.permissions.permissions import speaks_of
from agentobs.agent.permissions.rules import WHOLE, Call, Rule, exact, exact_subject
from agentobs.agent.permissions.shell import Reading, read_command

_EMPTY = re.compile(f"^{HOLE}+(?: |$)| {HOLE}+(?= |$)")
"""A word of only unknown values, with one adjacent blank."""


@dataclass(frozen=True, slots=True)
class CallView:
    """A call, with everything that rules compare, derived once for all rules."""

    call: Call
    reading: Reading | None
    """The commands of a shell call."""
    written: tuple[str, ...] = ()
    """Every form of every command as written, and the whole text."""
    known: tuple[str, ...] = ()
    """The same with holes. A hole includes the adjacent blank if the word may be empty."""

    @classmethod
    def of(cls, call: Call) -> CallView:
        """Return the view of a call that rules are matched against."""
        if call.tool_class != "shell" or call.subject is None:
            return cls(call, None)
        reading = read_command(call.subject)
        forms = [form for part in reading.parts for form in (part.form, *part.hidden)]
        written = dict.fromkeys([call.subject.strip(), *(form.written for form in forms)])
        known = dict.fromkeys(_EMPTY.sub(HOLE, form.known.replace(GAP, " ")) for form in forms)
        return cls(call, reading, tuple(written), tuple(known))

    @property
    def doubt(self) -> str | None:
        """Why no rule with a pattern can allow the call; None if one can."""
        return None if self.reading is None else self.reading.doubt


def names(rule: Rule, call: Call) -> bool:
    """Return whether a rule applies to the call's tool, by its name or an alias."""
    return any(speaks_of(rule, name) for name in (call.tool, *call.aliases))


def forbids(rule: Rule, sight: CallView) -> Match:
    """Return whether a deny or ask rule matches a call; `doubt` if it may."""
    call, pattern = sight.call, rule.pattern
    if not names(rule, call):
        return "no"
    if pattern is None or rule.is_bare:
        return "yes"
    if rule.is_exact:
        return _match_if(pattern[1:] in (call.subject, exact(call)))
    if sight.reading is not None:
        return _command_forbidden(pattern, sight, sight.reading)
    if pattern.startswith("host:"):
        return _hosts_forbidden(pattern[5:], call.hosts)
    if "://" in pattern and call.subject is not None:
        return _url_forbidden(pattern, call.subject)
    if call.paths:
        return _match_if(any(path_or_parent_fits(pattern, path.path) for path in call.paths))
    if call.subject is None:
        return "doubt"
    return _match_if(fits(alike(pattern), alike(call.subject)))


def allowing(rules: Sequence[Rule], sight: CallView) -> tuple[Rule, ...]:
    """Return the rules that together allow the whole call, the first match for each part; empty if
    they do not.
    """
    about = [rule for rule in rules if names(rule, sight.call)]
    for rule in about:
        if rule.is_bare or _is_that_call(rule, sight.call):
            return (rule,)
    if sight.reading is not None:
        if sight.doubt is not None:
            return ()
        known = [part.form.known for part in sight.reading.parts]
        return _each(about, known, _command_allowed)
    return _allowing_parts(about, sight.call)


def _allowing_parts(rules: Sequence[Rule], call: Call) -> tuple[Rule, ...]:
    of_hosts = [rule for rule in rules if (rule.pattern or "").startswith("host:")]
    of_urls = [rule for rule in rules if "://" in (rule.pattern or "")]
    others = [rule for rule in rules if rule not in of_hosts and rule not in of_urls]
    subject = [] if call.subject is None else [call.subject]
    return (
        _each(of_hosts, call.hosts, lambda pattern, host: host_fits(pattern[5:], host))
        or _each(of_urls, subject, lambda pattern, url: url_fits(pattern, url) == "yes")
        or _each(others, [path.path for path in call.paths], path_fits)
        or (() if call.paths else _each(others, subject, fits))
    )


def _each(
    rules: Sequence[Rule], parts: Sequence[str], is_allowed: Callable[[str, str], bool]
) -> tuple[Rule, ...]:
    found = []
    for part in parts:
        rule = next((rule for rule in rules if is_allowed(rule.pattern or "", part)), None)
        if rule is None:
            return ()
        found.append(rule)
    return tuple(dict.fromkeys(found))


def _is_that_call(rule: Rule, call: Call) -> bool:
    pattern = rule.pattern or ""
    if rule.is_exact:
        return pattern[1:] == (exact(call) if pattern.startswith(WHOLE) else exact_subject(call))
    return call.tool_class == "shell" and "*" not in pattern and pattern == call.subject


def _command_allowed(pattern: str, known: str) -> bool:
    # A star in quotes is a literal star. Removing the quotes would make the rule wider than it was
    # written.
    plain = pattern if "*" in pattern else _unquoted(pattern, GAP)
    without = _EMPTY.sub("", known)  # a value may be empty, and then its word is absent
    return any(
        fits(each, known) and any(fits(other, without) for other in _spellings(plain))
        for each in _spellings(plain)
    )


def _command_forbidden(pattern: str, sight: CallView, reading: Reading) -> Match:
    wanted = {*_spellings(_unquoted(pattern, " ")), *_spellings(pattern)}
    if any(fits(each, text) for each in wanted for text in sight.written):
        return "yes"
    if reading.is_guess or any(may_fit(each, text) for each in wanted for text in sight.known):
        return "doubt"
    return "no"


def _spellings(pattern: str) -> tuple[str, ...]:
    """Return the spellings of a pattern, because `git *` also matches `git` alone."""
    return (pattern, pattern[:-2]) if pattern.endswith(" *") and pattern[:-2] else (pattern,)


def _unquoted(pattern: str, blank: str) -> str:
    """Return the words of a pattern normalized like those of a command: unquoted, separated by one
    blank.
    """
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
    return "no" if all(readings(host) for host in hosts) else "doubt"


def _url_forbidden(pattern: str, url: str) -> Match:
    if fits(pattern.lower(), url.lower()):
        return "yes"
    return url_fits(pattern, url)


def _match_if(matches: bool) -> Match:
    return "yes" if matches else "no"
