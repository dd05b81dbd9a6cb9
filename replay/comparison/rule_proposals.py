"""Proposals: which rules would hide a difference between a recorded and a live value, and what each of them hides.

`propose_rules` answers that for two texts or JSON values; it reads nothing else. A report uses the parts of it: the
rules for each place that differs. Rules are proposed only if they hide the whole difference, and as few as do.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from agentobs.records.canonical_json import canonical
from agentobs.records.differences import Difference, differences
from replay.comparison.normalizers import Normalizing
from replay.comparison.value_forms import FORMS, Form, span_of

LOOKED_AT = 1_000
"""The maximum number of differences that are examined, to limit the time. Our choice."""
TEXT_MAX = 200_000
"""The maximum length of a text for which rules are searched, in characters. Our choice."""
TOGETHER_MAX = 6
"""The maximum number of rules that are proposed together for one text. Our choice."""
CANDIDATES_MAX = 10
"""The maximum number of rules of which combinations are tried. Our choice."""
SHOWN_CHARACTERS = 80
"""The maximum number of characters of a hidden value that a proposal shows."""


@dataclass(frozen=True, slots=True)
class HiddenValue:
    """A pair of values that a rule hides."""

    rule: str
    """The name of the rule."""
    text: str
    """The recorded value."""
    now: str
    """The live value in its place."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A rule that would hide values that are new in each run."""

    rule: str
    """The name of the rule, for `--normalize` and `normalizers`."""
    words: str
    """What the values look like."""
    leaves: int
    """How many of the differences it hides, alone or together with the other proposed rules."""
    of: int
    """How many differences there are."""
    hides: tuple[str, ...] = ()
    """The first recorded values that it hides, without duplicates."""

    @property
    def text(self) -> str:
        """The hidden values in one phrase: `time hides "23:59" (2 of 3 differences)`."""
        part = "" if self.leaves == self.of else f" ({self.leaves} of {self.of} differences)"
        shown = " and ".join(json.dumps(each, ensure_ascii=False) for each in self.hides)
        return f"{self.rule} hides {shown or self.words}{part}"


def propose_rules(recorded: Any, now: Any) -> list[HiddenValue] | None:
    """Return the values that rules would have to hide so that two texts or JSON values are the same.

    The rules to name are `{each.rule for each in result}`. Nothing outside the arguments is read, and a rule is
    proposed only if a replay with it would accept the pair: what was one value must be one value now.

    Args:
        recorded: the recorded text or JSON value.
        now: the live one.

    Returns:
        One entry per pair of different values, by place and rule; an empty list if both are the same; None if something
        differs that no rule hides.
    """
    found = differences(recorded, now)
    if len(found) > LOOKED_AT:
        return None
    hidden: list[HiddenValue] = []
    for each in found:
        values = hiding_of(each)
        if values is None:
            return None
        hidden += values
    names = {each.rule for each in hidden}
    rules = [form.name for form in FORMS if form.name in names]
    if hidden and not _accepts(rules, canonical(recorded), canonical(now)):
        return None
    return list(dict.fromkeys(hidden))


def hiding_of(difference: Difference) -> list[HiddenValue] | None:
    """Return the values that rules would have to hide so that a difference disappears; None if no rules do."""
    if difference.change != "changed":
        return None
    old, new = difference.expected, difference.actual
    if not all(isinstance(each, str | int | float) for each in (old, new)):
        return None
    if isinstance(old, bool) or isinstance(new, bool):
        return None
    key = next((f'"{key}":' for key in difference.keys[-1:] if isinstance(key, str)), "")
    olds, news = (key + json.dumps(each, ensure_ascii=False) for each in (old, new))
    if max(len(olds), len(news)) > TEXT_MAX:
        return None
    for forms in _combinations(olds, news):
        names = [form.name for form in forms]
        values = _pairs(names, olds, news)
        if values is not None and {each.rule for each in values} == set(names):
            return values
    return None


def proposals(found: Sequence[Difference]) -> tuple[Proposal, ...]:
    """Return the rules that would hide differences, each with the number of differences and the hidden values."""
    leaves: dict[str, int] = {}
    texts: dict[str, dict[str, None]] = {}
    for each in found[:LOOKED_AT]:
        values = hiding_of(each) or []
        for rule in dict.fromkeys(value.rule for value in values):
            leaves[rule] = leaves.get(rule, 0) + 1
        for value in values:
            texts.setdefault(value.rule, {})[_short(value.text)] = None
    return tuple(
        Proposal(form.name, form.words, leaves[form.name], len(found), tuple(texts[form.name])[:3])
        for form in FORMS
        if form.name in leaves
    )


def _combinations(old: str, new: str) -> Iterator[Sequence[Form]]:
    """Yield sets of forms that may hide a difference, smallest first; each form finds values that differ."""
    candidates = [form for form in FORMS if _values(form, old) != _values(form, new)]
    for size in range(1, min(TOGETHER_MAX, len(candidates)) + 1):
        yield from itertools.combinations(candidates[:CANDIDATES_MAX], size)


def _values(form: Form, text: str) -> list[str]:
    return [text[slice(*span_of(match))] for match in form.pattern.finditer(text)]


def _pairs(rules: Sequence[str], old: str, new: str) -> list[HiddenValue] | None:
    """Return the pairs of different values if rules make two JSON texts equal, else None."""
    normalizing = Normalizing(rules)
    olds, news, pairs = normalizing.plain(old, new)
    if olds != news or pairs is None or not normalizing.fit(pairs):
        return None
    return [HiddenValue(rule, _decoded(a), _decoded(b)) for rule, a, b in pairs if a != b]


def _accepts(rules: Sequence[str], old: str, new: str) -> bool:
    return _pairs(rules, old, new) is not None


def _decoded(value: str) -> str:
    """Return a value of JSON text without its JSON escapes."""
    try:
        return str(json.loads(f'"{value}"'))
    except ValueError:
        return value


def _short(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"
