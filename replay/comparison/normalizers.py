"""Normalizers: rules for values that are new in each run, such as a UUID in a prompt.

No rule is active by default. Before a recorded text and a live text are compared, an active rule replaces the values
that it finds in both texts by typed placeholders, and pairs the values with each other. When a live value first appears
in the place of a recorded value, the two are paired; from then on, the live value must appear wherever the recorded
value did. This also applies to equal values: a value that was the same in both texts must stay the same. So the report
still shows if the agent confuses two UUIDs.

Clock readings and durations are different: two readings may be equal in one run and differ in the next, because a
replay is faster than its recording. So each occurrence of such a value is paired separately.

A value that the agent received in a recorded answer (of the model, a tool or the world) only matches itself. If the
agent created a value and a recorded answer quotes it, the agent receives the recorded value. After that, the agent may
use the live or the recorded value, because both represent the same value.
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
    """A rule for values of one form, such as UUIDs."""

    name: str
    """The name of the rule, which is also part of the placeholder of a value: `<name>`."""
    pattern: str
    """A Python regular expression that finds the values in JSON text. If it has a group named `value`, only this group
    is hidden, and the rest of the match is compared.
    """
    compiled: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Compile the pattern.

        Raises:
            UsageError: the name or the pattern is invalid.
        """
        is_too_long = len(self.pattern) > PATTERN_MAX and self.pattern not in _BUILT_IN_PATTERNS
        try:
            pattern = self.pattern[: PATTERN_MAX + 1] if is_too_long else self.pattern
            object.__setattr__(self, "compiled", re.compile(pattern))
        except re.error as error:
            raise _invalid(
                self.name, f"its pattern is not a regular expression: {error}"
            ) from error
        if is_too_long or self.compiled.match(""):
            raise _invalid(self.name, "its pattern is too long, or matches an empty string")
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,40}", self.name):
            raise _invalid(
                self.name, "its name contains characters other than letters, digits, _ . and -"
            )


Rule = str | Normalizer | Callable[[str], str]
"""The name of a built-in rule, a custom rule, or a function that is applied to the JSON text of both sides."""
BUILT_IN = {form.name: Normalizer(form.name, form.pattern.pattern) for form in FORMS}
"""The built-in rules, by the names that reports use."""
_MEASURED = frozenset(form.name for form in FORMS if form.is_measured)


def normalizer_of(rule: Rule | dict[str, str]) -> Normalizer | Callable[[str], str]:
    """Return a rule, given its name, the rule itself, or its stored form in a fixture.

    Raises:
        UsageError: the rule does not exist or is invalid.
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
        todo=f"Use one of {known}, or pass replay.Normalizer(name, pattern)",
    )


def stored_rules(rules: Sequence[Rule]) -> list[Any]:
    """Return rules in the form in which they are stored in the first line of a fixture.

    Raises:
        UsageError: a rule is a function, which cannot be stored in a file, or is not a rule.
    """
    stored: list[Any] = []
    for rule in map(normalizer_of, rules):
        if not isinstance(rule, Normalizer):
            raise UsageError(
                "a normalizer that is a function cannot be stored in a fixture",
                todo="Pass it to the replay, or write it as a pattern",
            )
        is_built_in = BUILT_IN.get(rule.name) == rule
        stored.append(rule.name if is_built_in else {"name": rule.name, "pattern": rule.pattern})
    return stored


Value = tuple[str, str]
"""The name of a rule and a value that it found."""
Pair = tuple[str, str, str]
"""The name of a rule, a recorded value, and the live value in its place."""


class _Pairs:
    """The pairs of live and recorded values."""

    def __init__(self, earlier: _Pairs | None = None) -> None:
        """Start empty, or with earlier pairs, which are not changed."""
        self.recorded: ChainMap[Value, str] = ChainMap(
            {}, *(earlier.recorded.maps if earlier else ())
        )
        """The recorded value, by rule and live value. A value from an answer is also paired with itself."""
        self.live: ChainMap[Value, str] = ChainMap({}, *(earlier.live.maps if earlier else ()))
        """The first live value that was paired with a recorded value, by rule and recorded value."""

    def add(self, pair: Pair) -> None:
        """Add a pair."""
        name, old, new = pair
        self.recorded[name, new] = old
        self.live.setdefault((name, old), new)


class ActiveNormalizers:
    """The rules of one replay, and the pairs of live and recorded values."""

    def __init__(self, rules: Sequence[Any] = ()) -> None:
        """Start without pairs."""
        self.rules = _in_order(list(dict.fromkeys(map(normalizer_of, rules))))
        self.applied: Counter[str] = Counter()
        """The number of values that each rule has hidden."""
        self._functions: set[str] = set()
        """The names of the functions that changed a text of the last comparison."""
        self._pairs = _Pairs()
        self._unsearched_answers: list[Callable[[], str]] = []
        """Recorded answers that the agent received and that have not been searched yet."""
        self._answer_values: dict[str, set[str]] = {}
        """By rule, the values in the recorded answers that have been searched."""

    @property
    def has_functions(self) -> bool:
        """Whether a rule is a function, which is applied to complete texts."""
        return len(self._patterns()) < len(self.rules)

    def normalized(self, recorded: str, live: str) -> tuple[str, str, list[Pair] | None]:
        """Replace the values in two texts by placeholders.

        Returns:
            Both texts with placeholders; and the pairs of their values, or None if the texts cannot match.
        """
        old, olds = self._with_placeholders(recorded)
        new, news = (old, olds) if live == recorded else self._with_placeholders(live)
        if len(olds) != len(news) and not (old == new and self.has_functions):
            return old, new, None
        return old, new, [(n, a, b) for (n, a), (_, b) in zip(olds, news, strict=False)]

    def can_pair(self, values: Iterable[Pair]) -> bool:
        """Return whether values can be paired, without adding the pairs."""
        pairs = _Pairs(self._pairs)
        return all(self._add_if_consistent(pairs, pair) for pair in values)

    def add_pairs(self, pairs: Sequence[Pair]) -> None:
        """Add pairs permanently."""
        for pair in pairs:
            self._add(self._pairs, pair)
        self.applied.update(name for name, old, new in pairs if old != new)
        self.applied.update(self._functions)
        self.forget_functions()

    def forget_functions(self) -> None:
        """Forget which functions changed the texts of the last comparison."""
        self._functions.clear()

    def note_answer(self, answer: Callable[[], str]) -> None:
        """Remember that the agent receives a recorded answer. `answer` is called later, and returns its JSON text."""
        self._unsearched_answers.append(answer)

    def with_recorded_values(self, recorded: str, live: str) -> str:
        """Return a live text in which each value is replaced by its recorded value, if the two are or can be paired."""
        if not self.rules:
            return live
        pairs = _Pairs(self._pairs)
        olds, news = self._with_placeholders(recorded)[1], self._with_placeholders(live)[1]
        self.forget_functions()
        if len(olds) == len(news):
            for (name, old), (_, new) in zip(olds, news, strict=True):
                self._add_if_consistent(pairs, (name, old, new))
        shown: list[str] = []
        for rule in self._patterns():
            places = [value for name, value in olds if name == rule.name]
            live = self._with_gaps(pairs, rule, live, places, shown)
        return _GAP.sub(
            lambda gap: shown[int(gap[1])] if int(gap[1]) < len(shown) else gap[0], live
        )

    def _with_gaps(
        self, pairs: _Pairs, rule: Normalizer, text: str, places: list[str], shown: list[str]
    ) -> str:
        """Return a live text with a gap for each value of a rule; append the values that fill the gaps to `shown`."""
        found = list(rule.compiled.finditer(text))
        is_measured = rule.name in _MEASURED and len(found) == len(places)
        parts, at = [], 0
        for number, match in enumerate(found):
            start, end = span_of(match)
            value = text[start:end]
            if is_measured and self._can_pair_readings(pairs, rule.name, places[number], value):
                value = places[number]
            else:
                value = self._recorded_value(pairs, rule.name, value)
            parts += [text[at:start], f"\0{len(shown)}\0"]
            shown.append(value)
            at = end
        return "".join([*parts, text[at:]])

    def _add_if_consistent(self, pairs: _Pairs, pair: Pair) -> bool:
        """Add a pair if it is consistent with the other pairs; return whether it is consistent."""
        name, old, new = pair
        if name in _MEASURED:
            if can_pair := self._can_pair_readings(pairs, name, old, new):
                self._add(pairs, pair)
            return can_pair
        if (name, new) in pairs.recorded:
            return pairs.recorded[name, new] == old
        if old == new:
            if (name, old) in pairs.live and not self._was_in_answer(name, old, as_prefix=True):
                return False
        elif (name, old) in pairs.live or any(self._was_in_answer(name, v) for v in (old, new)):
            return False
        pairs.add(pair)
        return True

    def _add(self, pairs: _Pairs, pair: Pair) -> None:
        """Add a pair of values, unless it is a reading that the agent repeats unchanged from an answer."""
        name, old, new = pair
        if name in _MEASURED and old == new and self._was_in_answer(name, old):
            return
        pairs.add(pair)

    def _can_pair_readings(self, pairs: _Pairs, name: str, old: str, new: str) -> bool:
        """Return whether a live reading can replace a recorded one.

        If the two readings differ and the recorded reading has no pair yet, neither reading may come from an answer.
        """
        if old == new or (name, old) in pairs.live:
            return True
        return not any(self._was_in_answer(name, each) for each in (old, new))

    def _recorded_value(self, pairs: _Pairs, name: str, value: str) -> str:
        """Return the recorded value that is paired with a live value; if there is none, a value without a pair."""
        if (name, value) in pairs.recorded:
            return pairs.recorded[name, value]
        if self._was_in_answer(name, value, as_prefix=True):
            return value
        while (name, value) in pairs.live:
            value = pairs.live[name, value]
        return value

    def _was_in_answer(self, name: str, value: str, *, as_prefix: bool = False) -> bool:
        """Return whether a received answer contained a value or, with `as_prefix`, a longer value with this prefix."""
        while self._unsearched_answers:
            text = self._unsearched_answers.pop()()
            for rule, found in self._with_placeholders(text)[1]:
                self._answer_values.setdefault(rule, set()).add(found)
        known = self._answer_values.get(name, set())
        end = len(value)
        return value in known or (
            as_prefix and any(v.startswith(value) and not v[end].isdigit() for v in known)
        )

    def _with_placeholders(self, text: str) -> tuple[str, list[tuple[str, str]]]:
        """Return a text with placeholders, and the values that they replace, by rule and in order."""
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


_GAP = re.compile(r"\0(\d{1,9})\0")
"""The position of a value in a text, between null characters, which JSON text does not contain."""


def _in_order(rules: list[Any]) -> list[Any]:
    """Return rules with the built-in rules in their fixed order; custom rules keep their positions."""
    built_in = sorted(
        (each for each in rules if _is_built_in(each)), key=lambda each: APPLIED[each.name]
    )
    ordered: Iterator[Any] = iter(built_in)
    return [next(ordered) if _is_built_in(each) else each for each in rules]


def _is_built_in(rule: Any) -> bool:
    return isinstance(rule, Normalizer) and BUILT_IN.get(rule.name) == rule


def _invalid(name: str, why: str) -> UsageError:
    return UsageError(f"the normalizer {name!r} is invalid: {why}", todo="Change the pattern")
