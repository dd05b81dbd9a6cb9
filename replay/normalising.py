"""Normalisers: rules for values that are new in each run, such as a uuid in a prompt.

None is on unless it is asked for. One that is makes typed placeholders of what it finds in both texts before they are
compared, and these stand for each other: the first time that a live value stands where a recorded one stood, the two
belong together, and from then on the one must stand wherever the other stood. That holds for equal values, too: what
was the same once stays the same. So a second uuid in the place of the first is still seen.

What the agent heard in an answer out of the recording, of the model, a tool or the world, is itself: it stands for
nothing else, and nothing else for it. One value may be both. Where the agent drew it, another one stands for it now;
where an answer then quotes it, the agent hears the recorded one, and may say either, for both are that value.
"""

from __future__ import annotations

import functools
import re
from collections import ChainMap, Counter
from collections.abc import Callable, Iterable, Sequence
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


Value = tuple[str, str]
"""The rule and a value that it found."""
Pair = tuple[str, str, str]
"""The rule, a recorded value, and the live one in its place."""


class _Known:
    """Which live value stands for which recorded one, by rule and value."""

    def __init__(self, before: _Known | None = None) -> None:
        """Start with nothing, or with what was known before, which is left alone."""
        self.recorded: ChainMap[Value, str] = ChainMap(
            {}, *(before.recorded.maps if before else ())
        )
        """By live value. One of an answer stands for itself beside the one that is new."""
        self.live: ChainMap[Value, str] = ChainMap({}, *(before.live.maps if before else ()))
        """By recorded value: the first that stood for it."""

    def add(self, pair: Pair) -> None:
        """Note that two values belong together."""
        name, old, new = pair
        self.recorded[name, new] = old
        self.live.setdefault((name, old), new)


class Normalising:
    """The rules of one replay, and which live value stands for which recorded one."""

    def __init__(self, rules: Sequence[Any] = ()) -> None:
        """Start with nothing known."""
        self.rules = list(dict.fromkeys(map(normaliser_of, rules)))
        self.applied: Counter[str] = Counter()
        """How many values each rule has hidden."""
        self._functions: set[str] = set()
        self._known = _Known()
        self._unread: list[Callable[[], str]] = []
        """Answers of the recording that the agent heard, and that were not looked at yet."""
        self._heard: dict[str, set[str]] = {}
        """The values in those that were, by rule."""

    @property
    def has_functions(self) -> bool:
        """Whether a rule is a function, which is to be given whole texts."""
        return len(self._patterns()) < len(self.rules)

    def plain(self, recorded: str, came: str) -> tuple[str, str, list[Pair] | None]:
        """Return both texts with placeholders, and which values would belong together; None where they cannot."""
        old, olds = self._marked(recorded)
        new, news = (old, olds) if came == recorded else self._marked(came)
        if len(olds) != len(news) and not (old == new and self.has_functions):
            return old, new, None
        return old, new, [(n, a, b) for (n, a), (_, b) in zip(olds, news, strict=False)]

    def fit(self, pairs: Iterable[Pair]) -> bool:
        """Return whether values may belong together."""
        known = _Known(self._known)
        return all(self._joined(known, pair) for pair in pairs)

    def belong(self, pairs: Sequence[Pair]) -> None:
        """Note which values belong together from now on."""
        for pair in pairs:
            self._known.add(pair)
        self.applied.update(name for name, old, new in pairs if old != new)
        self.applied.update(self._functions)
        self.forget()

    def forget(self) -> None:
        """Forget which functions changed the texts that were looked at last."""
        self._functions.clear()

    def hear(self, answer: Callable[[], str]) -> None:
        """Note that the agent is given an answer out of the recording; its JSON text is read when it matters."""
        self._unread.append(answer)

    def read(self, recorded: str, came: str) -> str:
        """Return a live text in which values stand like those in whose places they stand, as far as that fits."""
        if not self.rules:
            return came
        known = _Known(self._known)
        olds, news = self._marked(recorded)[1], self._marked(came)[1]
        self.forget()
        if len(olds) == len(news):
            for (name, old), (_, new) in zip(olds, news, strict=True):
                self._joined(known, (name, old, new))
        for rule in self._patterns():
            came = rule.compiled.sub(functools.partial(self._shown, known, rule.name), came)
        return came

    def _joined(self, known: _Known, pair: Pair) -> bool:
        """Add a pair to what is known, and return whether it fits there."""
        name, old, new = pair
        if (name, new) in known.recorded:
            return known.recorded[name, new] == old
        if old == new:
            if (name, old) in known.live and not self._was_heard(name, old, in_part=True):
                return False
        elif (name, old) in known.live or any(self._was_heard(name, each) for each in (old, new)):
            return False
        known.add(pair)
        return True

    def _shown(self, known: _Known, name: str, match: re.Match[str]) -> str:
        """Return a live value as the recorded one for which it stands, else as one that is not taken."""
        value = match[0]
        if (name, value) in known.recorded:
            return known.recorded[name, value]
        if self._was_heard(name, value, in_part=True):
            return value
        while (name, value) in known.live:
            value = known.live[name, value]
        return value

    def _was_heard(self, name: str, value: str, *, in_part: bool = False) -> bool:
        """Return whether an answer out of the recording had a value, or one that begins with it, as a path does."""
        while self._unread:
            text = self._unread.pop()()
            for rule, found in self._marked(text)[1]:
                self._heard.setdefault(rule, set()).add(found)
        heard = self._heard.get(name, set())
        at = len(value)
        return value in heard or (
            in_part and any(h.startswith(value) and not h[at].isdigit() for h in heard)
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


def _unusable(name: str, why: str) -> UsageError:
    return UsageError(f"the normaliser {name!r} cannot be used: {why}", todo="Write it otherwise")
