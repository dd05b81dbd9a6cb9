"""Proposals of rules that would hide the difference between a recorded and a live value.

`propose_rules` returns the rules for two texts or JSON values, and the values that each rule hides. A report contains
the rules for each place that differs. Rules are proposed only if they hide the whole difference, and as few rules as
possible.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from agentobs.records.canonical_json import canonical
from agentobs.records.differences import Difference, differences
from replay.comparison.normalizers import ActiveNormalizers
from replay.comparison.value_forms import FORMS, Form, span_of

DIFFERENCES_MAX = 1_000
"""The maximum number of differences that are examined, to limit the time. Our choice."""
TEXT_MAX = 200_000
"""The maximum length of a text for which rules are searched, in characters. Our choice."""
RULES_MAX = 6
"""The maximum number of rules that are proposed for one text. Our choice."""
CANDIDATES_MAX = 10
"""The maximum number of rules whose combinations are tried. Our choice."""
SHOWN_CHARACTERS = 80
"""The maximum number of characters of a hidden value that a proposal shows."""


@dataclass(frozen=True, slots=True)
class HiddenValue:
    """A recorded and a live value whose difference a rule hides."""

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
    """A phrase for the values, such as `a time`."""
    leaves: int
    """The number of differences that the rule hides, alone or in combination with the other proposed rules."""
    of: int
    """The number of all differences."""
    hides: tuple[str, ...] = ()
    """The first recorded values that the rule hides, without duplicates."""

    @property
    def text(self) -> str:
        """The rule and the values that it hides, such as `time would hide "23:59" (2 of 3 differences)`."""
        part = "" if self.leaves == self.of else f" ({self.leaves} of {self.of} differences)"
        shown = " and ".join(json.dumps(each, ensure_ascii=False) for each in self.hides)
        return f"{self.rule} would hide {shown or self.words}{part}"


def propose_rules(recorded: Any, now: Any) -> list[HiddenValue] | None:
    """Return the values that rules would have to hide to make two texts or JSON values equal.

    The names of the rules are `{each.rule for each in result}`. Nothing except the arguments is read. A rule is
    proposed only if a replay with this rule would accept the pair, so values that were equal must still be equal.

    Args:
        recorded: the recorded text or JSON value.
        now: the live text or JSON value.

    Returns:
        One entry per pair of different values, sorted by place and rule; an empty list if both are equal; None if no
        rules hide all differences.
    """
    found = differences(recorded, now)
    if len(found) > DIFFERENCES_MAX:
        return None
    hidden: list[HiddenValue] = []
    for each in found:
        values = hidden_values(each)
        if values is None:
            return None
        hidden += values
    names = {each.rule for each in hidden}
    rules = [form.name for form in FORMS if form.name in names]
    if hidden and not _accepts(rules, canonical(recorded), canonical(now)):
        return None
    return list(dict.fromkeys(hidden))


def hidden_values(difference: Difference) -> list[HiddenValue] | None:
    """Return the values that rules would have to hide to remove a difference; None if no rules can remove it."""
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
    """Return the rules that would hide differences, each with the number of these differences and the hidden values."""
    leaves: dict[str, int] = {}
    texts: dict[str, dict[str, None]] = {}
    for each in found[:DIFFERENCES_MAX]:
        values = hidden_values(each) or []
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
    """Yield sets of forms that might hide a difference, smallest first. No form finds the same values in both texts."""
    candidates = [form for form in FORMS if _values(form, old) != _values(form, new)]
    for size in range(1, min(RULES_MAX, len(candidates)) + 1):
        yield from itertools.combinations(candidates[:CANDIDATES_MAX], size)


def _values(form: Form, text: str) -> list[str]:
    return [text[slice(*span_of(match))] for match in form.pattern.finditer(text)]


def _pairs(rules: Sequence[str], old: str, new: str) -> list[HiddenValue] | None:
    """Return the pairs of different values if rules make two JSON texts equal; else None."""
    normalizers = ActiveNormalizers(rules)
    olds, news, pairs = normalizers.normalized(old, new)
    if olds != news or pairs is None or not normalizers.can_pair(pairs):
        return None
    return [HiddenValue(rule, _decoded(a), _decoded(b)) for rule, a, b in pairs if a != b]


def _accepts(rules: Sequence[str], old: str, new: str) -> bool:
    return _pairs(rules, old, new) is not None


def _decoded(value: str) -> str:
    """Return a value from JSON text without JSON escapes."""
    try:
        return str(json.loads(f'"{value}"'))
    except ValueError:
        return value


def _short(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"
