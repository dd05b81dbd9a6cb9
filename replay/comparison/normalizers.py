"""Normalizers: rules for values that are new in each run, such as a UUID in a prompt.

None is active by default. An active rule replaces the values that it finds in both texts by typed placeholders before
they are compared, and maps them to each other: when a live value first appears in the place of a recorded one, the two
are paired, and from then on the live one must appear wherever the recorded one did. This also holds for equal values:
what was the same once stays the same. So a second UUID in the place of the first is still detected.

Clock readings and durations are different: two readings may be equal in one run and not in the next, because a replay
is faster than its recording. Each of these is compared separately.

A value that the agent received in a recorded answer, of the model, a tool or the world, stands only for itself. A value
can be both. If the agent created it, the live value replaces it now; if an answer then quotes it, the agent receives
the recorded one, and may use either, because both are that value.
"""

from __future__ import annotations

import re
from collections import ChainMap, Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentobs.errors import UsageError
from replay.comparison.value_forms import APPLIED, FORMS, span_of

PATTERN_MAX = 1000
"""The maximum length of the pattern of a custom rule, in characters. Our choice."""
_BUILT_IN_PATTERNS = {form.pattern.pattern for form in FORMS}


@dataclass(frozen=True, slots=True)
class Normalizer:
    """A rule for one form of values."""

    name: str
    """The name in the placeholder of a value: `<name#1>`."""
    pattern: str
    """A Python regular expression that finds the values in JSON text. If it has a group named `value`, only that group
    is hidden; the rest of the match is compared.
    """
    compiled: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Compile the pattern.

        Raises:
            UsageError: the name or the pattern cannot be used.
        """
        is_too_long = len(self.pattern) > PATTERN_MAX and self.pattern not in _BUILT_IN_PATTERNS
        try:
            pattern = self.pattern[: PATTERN_MAX + 1] if is_too_long else self.pattern
            object.__setattr__(self, "compiled", re.compile(pattern))
        except re.error as error:
            raise _unusable(
                self.name, f"its pattern is not a regular expression: {error}"
            ) from error
        if is_too_long or self.compiled.match(""):
            raise _unusable(self.name, "its pattern is too long, or matches an empty string")
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,40}", self.name):
            raise _unusable(
                self.name, "its name contains characters other than letters, digits, _ . and -"
            )


Rule = str | Normalizer | Callable[[str], str]
"""The name of a built-in rule, a custom rule, or a function that receives the JSON text of both sides."""
BUILT_IN = {form.name: Normalizer(form.name, form.pattern.pattern) for form in FORMS}
"""The built-in rules, by the name under which a report proposes them."""
_MEASURED = frozenset(form.name for form in FORMS if form.is_measured)


def normalizer_of(rule: Rule | dict[str, str]) -> Normalizer | Callable[[str], str]:
    """Return the rule for a name, a rule, or an entry of a fixture.

    Raises:
        UsageError: there is no rule with that name, or it cannot be used.
    """
    match rule:
        case str() if rule in BUILT_IN:
            return BUILT_IN[rule]
        case {"name": str(name), "pattern": str(pattern)}:
            return Normalizer(name, pattern)
        case Normalizer():
            return rule
        case _ if callable(rule):
            return rule
    known = ", ".join(BUILT_IN)
    raise UsageError(
        f"unknown normalizer {rule!r}",
        todo=f"Name one of {known}, or pass replay.Normalizer(name, pattern)",
    )


def told_of(rules: Sequence[Rule]) -> list[Any]:
    """Return rules in the form in which the first line of a fixture holds them.

    Raises:
        UsageError: one of them is a function, which no file can hold, or is not a rule.
    """
    told: list[Any] = []
    for rule in map(normalizer_of, rules):
        if not isinstance(rule, Normalizer):
            raise UsageError(
                "a fixture cannot hold a normalizer that is a function",
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
    """Which live value is paired with which recorded one, by rule and value."""

    def __init__(self, before: _Known | None = None) -> None:
        """Start empty, or with earlier pairs, which are not changed."""
        self.recorded: ChainMap[Value, str] = ChainMap(
            {}, *(before.recorded.maps if before else ())
        )
        """By live value. A value from an answer is also paired with itself."""
        self.live: ChainMap[Value, str] = ChainMap({}, *(before.live.maps if before else ()))
        """By recorded value: the first live value that was paired with it."""

    def add(self, pair: Pair) -> None:
        """Add a pair."""
        name, old, new = pair
        self.recorded[name, new] = old
        self.live.setdefault((name, old), new)


class Normalizing:
    """The rules of one replay, and which live value is paired with which recorded one."""

    def __init__(self, rules: Sequence[Any] = ()) -> None:
        """Start with nothing known."""
        self.rules = _in_order(list(dict.fromkeys(map(normalizer_of, rules))))
        self.applied: Counter[str] = Counter()
        """How many values each rule has hidden."""
        self._functions: set[str] = set()
        self._known = _Known()
        self._unread: list[Callable[[], str]] = []
        """Recorded answers that the agent received and that have not been searched yet."""
        self._heard: dict[str, set[str]] = {}
        """The values in those that were searched, by rule."""

    @property
    def has_functions(self) -> bool:
        """Whether a rule is a function, which receives complete texts."""
        return len(self._patterns()) < len(self.rules)

    def plain(self, recorded: str, came: str) -> tuple[str, str, list[Pair] | None]:
        """Return both texts with placeholders, and the pairs that would be added; None if they cannot match."""
        old, olds = self._marked(recorded)
        new, news = (old, olds) if came == recorded else self._marked(came)
        if len(olds) != len(news) and not (old == new and self.has_functions):
            return old, new, None
        return old, new, [(n, a, b) for (n, a), (_, b) in zip(olds, news, strict=False)]

    def fit(self, pairs: Iterable[Pair]) -> bool:
        """Return whether values may be paired."""
        known = _Known(self._known)
        return all(self._joined(known, pair) for pair in pairs)

    def belong(self, pairs: Sequence[Pair]) -> None:
        """Add pairs permanently."""
        for pair in pairs:
            self._note(self._known, pair)
        self.applied.update(name for name, old, new in pairs if old != new)
        self.applied.update(self._functions)
        self.forget()

    def forget(self) -> None:
        """Forget which functions changed the texts of the last comparison."""
        self._functions.clear()

    def hear(self, answer: Callable[[], str]) -> None:
        """Note that the agent receives a recorded answer; its JSON text is searched when needed."""
        self._unread.append(answer)

    def read(self, recorded: str, came: str) -> str:
        """Return a live text in which values are replaced by the recorded ones that they are paired with, where
        possible.
        """
        if not self.rules:
            return came
        known = _Known(self._known)
        olds, news = self._marked(recorded)[1], self._marked(came)[1]
        self.forget()
        if len(olds) == len(news):
            for (name, old), (_, new) in zip(olds, news, strict=True):
                self._joined(known, (name, old, new))
        shown: list[str] = []
        for rule in self._patterns():
            places = [value for name, value in olds if name == rule.name]
            came = self._hidden(known, rule, came, places, shown)
        return _HOLE.sub(
            lambda hole: shown[int(hole[1])] if int(hole[1]) < len(shown) else hole[0], came
        )

    def _hidden(
        self, known: _Known, rule: Normalizer, text: str, places: list[str], shown: list[str]
    ) -> str:
        """Return a live text with a gap for each value of a rule; the values are appended to `shown`."""
        found = list(rule.compiled.finditer(text))
        is_measured = rule.name in _MEASURED and len(found) == len(places)
        parts, at = [], 0
        for number, match in enumerate(found):
            start, end = span_of(match)
            value = text[start:end]
            if is_measured and self._fits_measured(known, rule.name, places[number], value):
                value = places[number]
            else:
                value = self._shown(known, rule.name, value)
            parts += [text[at:start], f"\0{len(shown)}\0"]
            shown.append(value)
            at = end
        return "".join([*parts, text[at:]])

    def _joined(self, known: _Known, pair: Pair) -> bool:
        """Add a pair, and return whether it is consistent."""
        name, old, new = pair
        if name in _MEASURED:
            if fits := self._fits_measured(known, name, old, new):
                self._note(known, pair)
            return fits
        if (name, new) in known.recorded:
            return known.recorded[name, new] == old
        if old == new:
            if (name, old) in known.live and not self._was_heard(name, old, in_part=True):
                return False
        elif (name, old) in known.live or any(self._was_heard(name, each) for each in (old, new)):
            return False
        known.add(pair)
        return True

    def _note(self, known: _Known, pair: Pair) -> None:
        """Add a pair of values, unless it is a reading that the agent repeats unchanged from an answer."""
        name, old, new = pair
        if name in _MEASURED and old == new and self._was_heard(name, old):
            return
        known.add(pair)

    def _fits_measured(self, known: _Known, name: str, old: str, new: str) -> bool:
        """Return whether a live reading may replace a recorded one, which requires that neither came from an answer."""
        if old == new or (name, old) in known.live:
            return True
        return not any(self._was_heard(name, each) for each in (old, new))

    def _shown(self, known: _Known, name: str, value: str) -> str:
        """Return the recorded value that a live value is paired with, otherwise an unused one."""
        if (name, value) in known.recorded:
            return known.recorded[name, value]
        if self._was_heard(name, value, in_part=True):
            return value
        while (name, value) in known.live:
            value = known.live[name, value]
        return value

    def _was_heard(self, name: str, value: str, *, in_part: bool = False) -> bool:
        """Return whether a recorded answer contained a value, or one that starts with it, such as a path."""
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
        """Return a text with placeholders, and the values that they replace, in order by rule."""
        found: list[tuple[str, str]] = []
        for rule in self.rules:
            if not isinstance(rule, Normalizer):
                before, text = text, rule(text)
                if text != before:
                    self._functions.add(getattr(rule, "__name__", "a function"))
                continue
            parts, at = [], 0
            for start, end in map(span_of, rule.compiled.finditer(text)):
                found.append((rule.name, text[start:end]))
                parts += [text[at:start], f"<{rule.name}>"]
                at = end
            text = "".join([*parts, text[at:]])
        return text, found

    def _patterns(self) -> list[Normalizer]:
        return [rule for rule in self.rules if isinstance(rule, Normalizer)]


_HOLE = re.compile(r"\0(\d{1,9})\0")
"""Marks the position of a value in a text; JSON text does not contain this character."""


def _in_order(rules: list[Any]) -> list[Any]:
    """Return rules with the built-in ones sorted into their fixed order."""
    built_in = sorted(
        (each for each in rules if _is_built_in(each)), key=lambda each: APPLIED[each.name]
    )
    ordered: Iterator[Any] = iter(built_in)
    return [next(ordered) if _is_built_in(each) else each for each in rules]


def _is_built_in(rule: Any) -> bool:
    return isinstance(rule, Normalizer) and BUILT_IN.get(rule.name) == rule


def _unusable(name: str, why: str) -> UsageError:
    return UsageError(f"the normalizer {name!r} cannot be used: {why}", todo="Change the pattern")
