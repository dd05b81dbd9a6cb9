"""Normalisers: rules for values that are new in each run, such as a uuid in a prompt.

None is on unless it is asked for. One that is makes typed placeholders of what it finds in both texts before they are
compared, and these stand for each other: the first time that a live value stands where a recorded one stood, the two
belong together, and from then on the one must stand wherever the other stood. So a second uuid in the place of the
first is still seen. What comes from the recording itself, in an answer of the model, is the same on both sides and
needs no rule.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentobs.errors import UsageError
from replay.looks import LOOKS

PATTERN_MAX = 1000
"""How long the pattern of a rule may be, in characters. Our choice."""


@dataclass(frozen=True, slots=True)
class Normaliser:
    """A rule for one form of values."""

    name: str
    """What stands in the place of a value: `<name#1>`."""
    pattern: str
    """A regular expression of Python that finds the values in JSON text."""
    compiled: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Compile the pattern.

        Raises:
            UsageError: the name or the pattern cannot be used.
        """
        try:
            object.__setattr__(self, "compiled", re.compile(self.pattern[: PATTERN_MAX + 1]))
        except re.error as error:
            raise _unusable(self.name, f"its pattern is no regular expression: {error}") from error
        if len(self.pattern) > PATTERN_MAX or self.compiled.match(""):
            raise _unusable(self.name, "its pattern is too long, or finds what is empty")
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,40}", self.name):
            raise _unusable(
                self.name, "its name has other characters than letters, digits, _ . and -"
            )


Rule = str | Normaliser | Callable[[str], str]
"""The name of a rule that we have, a rule of your own, or a function that is given the JSON text of both sides."""
BUILT_IN = {look.name: Normaliser(look.name, look.pattern.pattern) for look in LOOKS}
"""The rules that we have, by the name under which a report proposes them."""


def normaliser_of(rule: Rule | dict[str, str]) -> Normaliser | Callable[[str], str]:
    """Return the rule that a name, a rule, or a line of a fixture means.

    Raises:
        UsageError: there is no rule of that name, or it cannot be used.
    """
    match rule:
        case str() if rule in BUILT_IN:
            return BUILT_IN[rule]
        case {"name": str(name), "pattern": str(pattern)}:
            return Normaliser(name, pattern)
        case Normaliser():
            return rule
        case _ if callable(rule):
            return rule
    known = ", ".join(BUILT_IN)
    raise UsageError(
        f"no normaliser is called {rule!r}",
        todo=f"Name one of {known}, or pass replay.Normaliser(name, pattern)",
    )


def told_of(rules: Sequence[Rule]) -> list[Any]:
    """Return rules as the first line of a fixture tells them.

    Raises:
        UsageError: one of them is a function, which no file can hold, or is none.
    """
    told: list[Any] = []
    for rule in map(normaliser_of, rules):
        if not isinstance(rule, Normaliser):
            raise UsageError(
                "a fixture cannot hold a normaliser that is a function",
                todo="Pass it to the replay, or write it as a pattern",
            )
        is_ours = BUILT_IN.get(rule.name) == rule
        told.append(rule.name if is_ours else {"name": rule.name, "pattern": rule.pattern})
    return told


Pair = tuple[str, str, str]
"""The rule, a recorded value, and the live one in its place."""


class Normalising:
    """The rules of one replay, and which live value stands for which recorded one."""

    def __init__(self, rules: Sequence[Any] = ()) -> None:
        """Start with nothing known."""
        self.rules = list(dict.fromkeys(map(normaliser_of, rules)))
        self.applied: Counter[str] = Counter()
        """How many values each rule has hidden."""
        self._functions: set[str] = set()
        self._recorded: dict[tuple[str, str], str] = {}
        """By rule and live value."""
        self._live: dict[tuple[str, str], str] = {}
        """By rule and recorded value."""

    def plain(self, recorded: str, came: str) -> tuple[str, str, list[Pair] | None]:
        """Return both texts with placeholders, and which values would belong together; None where they cannot."""
        self._functions.clear()
        old, olds = self._marked(recorded)
        new, news = self._marked(came)
        if old != new and len(olds) != len(news):
            return old, new, None
        pairs = [(n, a, b) for (n, a), (_, b) in zip(olds, news, strict=False) if a != b]
        return old, new, pairs if self._fits(pairs) else None

    def belong(self, pairs: list[Pair]) -> None:
        """Note which values belong together from now on."""
        for name, old, new in pairs:
            self._recorded[name, new], self._live[name, old] = old, new
        self.applied.update(name for name, _, _ in pairs)
        self.applied.update(self._functions)

    def read(self, recorded: str, came: str) -> str:
        """Return a live text in which values stand like those in whose places they stand, as far as that fits."""
        if not self.rules:
            return came
        known = dict(self._recorded)
        taken = set(self._live)
        olds, news = self._marked(recorded)[1], self._marked(came)[1]
        if len(olds) == len(news):
            for (name, old), (_, new) in zip(olds, news, strict=True):
                if (name, new) not in known and (name, old) not in taken and old != new:
                    known[name, new] = old
                    taken.add((name, old))
        for rule in self._patterns():
            came = _replaced(rule, known, came)
        return came

    def _fits(self, pairs: list[Pair]) -> bool:
        recorded, live = dict(self._recorded), dict(self._live)
        return all(
            recorded.setdefault((name, new), old) == old
            and live.setdefault((name, old), new) == new
            for name, old, new in pairs
        )

    def _marked(self, text: str) -> tuple[str, list[tuple[str, str]]]:
        """Return a text with placeholders, and the values that they stand for, in their order by rule."""
        found: list[tuple[str, str]] = []
        for rule in self.rules:
            if not isinstance(rule, Normaliser):
                before, text = text, rule(text)
                if text != before:
                    self._functions.add(getattr(rule, "__name__", "a function"))
                continue
            found += [(rule.name, match[0]) for match in rule.compiled.finditer(text)]
            text = rule.compiled.sub(f"<{rule.name}>", text)
        return text, found

    def _patterns(self) -> list[Normaliser]:
        return [rule for rule in self.rules if isinstance(rule, Normaliser)]


def _replaced(rule: Normaliser, known: dict[tuple[str, str], str], text: str) -> str:
    return rule.compiled.sub(lambda match: known.get((rule.name, match[0]), match[0]), text)


def _unusable(name: str, why: str) -> UsageError:
    return UsageError(f"the normaliser {name!r} cannot be used: {why}", todo="Write it otherwise")
