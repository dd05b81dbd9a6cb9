"""Normalisers: rules for values that are new in each run, such as a uuid in a prompt.

None is on unless it is asked for. One that is makes typed placeholders of what it finds in both texts before they are
compared, and these stand for each other: the first time that a live value stands where a recorded one stood, the two
belong together, and from then on the one must stand wherever the other stood. That holds for equal values, too: what
was the same once stays the same. So a second uuid in the place of the first is still seen.

Clock readings and durations are different: two readings may be equal in one run and not in the next, because a replay
is faster than its recording. Each of these is compared on its own.

What the agent heard in an answer out of the recording, of the model, a tool or the world, is itself: it stands for
nothing else, and nothing else for it. One value may be both. Where the agent drew it, another one stands for it now;
where an answer then quotes it, the agent hears the recorded one, and may say either, for both are that value.
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
"""How long the pattern of a rule of your own may be, in characters. Our choice."""
_BUILT_IN_PATTERNS = {form.pattern.pattern for form in FORMS}


@dataclass(frozen=True, slots=True)
class Normaliser:
    """A rule for one form of values."""

    name: str
    """What stands in the place of a value: `<name#1>`."""
    pattern: str
    """A Python regular expression that finds the values in JSON text. If it has a group named `value`, only that group
    is hidden; the rest of the match is compared."""
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
            raise _unusable(self.name, f"its pattern is no regular expression: {error}") from error
        if is_too_long or self.compiled.match(""):
            raise _unusable(self.name, "its pattern is too long, or finds what is empty")
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,40}", self.name):
            raise _unusable(
                self.name, "its name has other characters than letters, digits, _ . and -"
            )


Rule = str | Normaliser | Callable[[str], str]
"""The name of a rule that we have, a rule of your own, or a function that is given the JSON text of both sides."""
BUILT_IN = {form.name: Normaliser(form.name, form.pattern.pattern) for form in FORMS}
"""The rules that we have, by the name under which a report proposes them."""
_MEASURED = frozenset(form.name for form in FORMS if form.is_measured)


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
        self.rules = _in_order(list(dict.fromkeys(map(normaliser_of, rules))))
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
            self._note(self._known, pair)
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
        shown: list[str] = []
        for rule in self._patterns():
            places = [value for name, value in olds if name == rule.name]
            came = self._hidden(known, rule, came, places, shown)
        return _HOLE.sub(
            lambda hole: shown[int(hole[1])] if int(hole[1]) < len(shown) else hole[0], came
        )

    def _hidden(
        self, known: _Known, rule: Normaliser, text: str, places: list[str], shown: list[str]
    ) -> str:
        """Return a live text with a hole for each value of a rule; the values are appended to `shown`."""
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
        """Add a pair to what is known, and return whether it fits there."""
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
        """Note a pair of values, unless it is a reading that the agent repeats unchanged from an answer."""
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
        """Return a live value as the recorded one for which it stands, else as one that is not taken."""
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
            parts, at = [], 0
            for start, end in map(span_of, rule.compiled.finditer(text)):
                found.append((rule.name, text[start:end]))
                parts += [text[at:start], f"<{rule.name}>"]
                at = end
            text = "".join([*parts, text[at:]])
        return text, found

    def _patterns(self) -> list[Normaliser]:
        return [rule for rule in self.rules if isinstance(rule, Normaliser)]


_HOLE = re.compile(r"\0(\d{1,9})\0")
"""Stands for a value in a text; JSON text has no such character."""


def _in_order(rules: list[Any]) -> list[Any]:
    """Return rules with the built-in ones sorted into their fixed order."""
    built_in = sorted(
        (each for each in rules if _is_built_in(each)), key=lambda each: APPLIED[each.name]
    )
    ordered: Iterator[Any] = iter(built_in)
    return [next(ordered) if _is_built_in(each) else each for each in rules]


def _is_built_in(rule: Any) -> bool:
    return isinstance(rule, Normaliser) and BUILT_IN.get(rule.name) == rule


def _unusable(name: str, why: str) -> UsageError:
    return UsageError(f"the normaliser {name!r} cannot be used: {why}", todo="Write it otherwise")
