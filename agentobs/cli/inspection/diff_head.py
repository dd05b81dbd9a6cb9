"""The head of a comparison of two sessions in the terminal: their outcomes, totals and models."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import click
from rich.padding import Padding
from rich.text import Text

from agentobs.cli.terminal.tables import console, print_line, show_table
from agentobs.records.cost_difference import Cost, cost_difference, open_difference
from agentobs.records.display import COST_MARKS, money, printable, seconds, text
from agentobs.records.outcome_difference import have_different_causes, outcome_difference
from agentobs.records.setup_difference import setup_changes, setup_unknown
from agentobs.store.analysis.first_changes import (
    by_end,
    first_changes,
    model_words,
    side_of,
    step_place,
)
from agentobs.store.analysis.lane_names import names_in_both
from agentobs.store.analysis.unfinished_turns import unfinished_of, unfinished_words

if TYPE_CHECKING:
    from replay.divergence.session_diff import Comparison

Row = Mapping[str, Any]

_TOTALS = (
    ("turns (all agents)", "turns"),
    ("attempts", "requests"),
    ("tool calls", "tool_calls"),
    ("failed tool calls", "failed_calls"),
    ("denied tool calls", "denied_calls"),
    ("failed requests", "failed_requests"),
    ("permission decisions", "decisions"),
    ("uncached input", "input_tokens"),
    ("output tokens", "output_tokens"),
    ("cache read", "cache_read_tokens"),
    ("cache write", "cache_write_tokens"),
    ("cost", "cost_usd"),
    ("duration", "session_duration_ns"),
)
_OF_SESSION = ("turns", "session_duration_ns", "failed_calls", "denied_calls", "failed_requests")
"""The totals that are not sums over the compared steps."""
_KEYS = ("compared_total", "total_of_a", "total_of_b", "b_minus_a")
"""The keys of the columns of the table, which determine their widths."""


class Side(Protocol):
    """A session or a fixture that is compared."""

    about: dict[str, Any]
    """Its description, as in the JSON."""
    session_title: str
    """Its title; empty if it has none."""
    starts: dict[tuple[str, str], int]
    """When its steps started, by kind and ID; empty for a fixture. [ns since 1970 UTC]"""
    failed_calls: set[str]
    """The IDs of its tool calls whose result is an error."""

    @property
    def title(self) -> str:
        """Its name, and its ID or path."""


def show_totals(compared: Sequence[Side], found: Comparison) -> None:
    """Print how two sessions ended, and a table of their totals."""
    for letter, side in zip("AB", compared, strict=True):
        print_line(f"{letter}  {printable(side.title)}  {side.about['outcome']}")
        if side.session_title:
            _print_indented(side.session_title)
        if side.about.get("cause"):
            _print_indented(f"cause: {side.about['cause']}")
    a, b = (side.about for side in compared)
    if have_different_causes(a, b):
        print_line(outcome_difference(a, b))
    for letter, side in zip("AB", compared, strict=True):
        if (turn := side.about.get("forked_turn")) is not None:
            parent = side.about["forked_from"] or "a fixture"
            print_line(
                f"{letter} is a fork of {parent}: turns up to {turn} were replayed at no cost"
            )
    click.echo()
    rows = (_total(name, key, compared, found) for name, key in _TOTALS)
    columns = ["", "A", "B", "B - A"]
    show_table(columns, filter(None, rows), keys=_KEYS)


def _print_indented(line: str) -> None:
    console().print(Padding(Text(printable(line)), (0, 0, 0, 3), expand=False))


def _total(
    name: str, key: str, compared: Sequence[Side], found: Comparison
) -> tuple[str, str, str, str] | None:
    """Return a row of the table of totals; None if neither session has the total."""
    sides, is_cost = (found.a, found.b), key == "cost_usd"
    a, b = (
        side.about.get(key) if key in _OF_SESSION else getattr(totals, key)
        for side, totals in zip(compared, sides, strict=True)
    )
    notes = [
        unfinished_words(unfinished_of(side.about)) if key == "turns" else "" for side in compared
    ]
    if not (a or b or any(notes)):
        return None
    are_low = [key == "output_tokens" and side.lower_bound_calls > 0 for side in sides]
    qualifiers = [
        COST_MARKS["lower_bound"]
        if is_low
        else COST_MARKS.get(side.cost_status, "")
        if is_cost
        else ""
        for side, is_low in zip(sides, are_low, strict=True)
    ]
    before, now = (_measure(key, *each) for each in zip((a, b), qualifiers, strict=True))
    difference = (
        _cost_difference(found, (before, now))
        if is_cost
        else _count_difference(key, (a, b), are_low, (before, now))
    )
    return name, f"{before}{notes[0]}", f"{now}{notes[1]}", difference


def _measure(key: str, value: Any, qualifier: str = "") -> str:
    if value is None:
        return "unknown" if key == "cost_usd" else ""
    if key == "cost_usd":
        is_low = qualifier == COST_MARKS["lower_bound"]
        return f"{qualifier}{money(value, 'lower_bound' if is_low else None)}"
    shown = seconds(value) if key == "session_duration_ns" else text(value)
    return f"{qualifier}{shown}"


def _difference(key: str, a: Any, b: Any) -> str:
    """Return the difference B - A as text; empty if there is none."""
    if a is None or b is None or a == b:
        return ""
    sign = "+" if b > a else "-"
    return f"{sign}{_measure(key, abs(b - a))}"


def _count_difference(
    key: str, values: tuple[Any, Any], are_low: Sequence[bool], shown: tuple[str, str]
) -> str:
    """Return the difference of two totals as text. It is a bound if one of them is a lower bound."""
    a, b = values
    if not any(are_low):
        return _difference(key, a, b)
    if all(are_low) or (a != b and are_low[1] != (b > a)):
        return open_difference(*shown)
    if a == b:
        return f"{'at least' if are_low[1] else 'at most'} 0"
    return f"at least {_difference(key, a, b)}"


def _cost_difference(found: Comparison, shown: tuple[str, str]) -> str:
    """Return the difference of the costs as text. It is a bound if one of them is a lower bound."""
    difference = cost_difference(
        *(
            Cost(
                each.cost_usd,
                bool(each.unpriced) or each.cost_status == "lower_bound",
                each.cost_status == "estimated",
            )
            for each in (found.a, found.b)
        )
    )
    if difference is None or (difference.bound == "exact" and not difference.is_estimated):
        return _difference("cost_usd", found.a.cost_usd, found.b.cost_usd)
    return difference.words(shown)


def change_lines(compared: Sequence[Side], found: Comparison) -> Iterator[str]:
    """Yield which models of A were replaced by which models in B, what else differs between what the sessions were made
    with, and the first differences of their steps, one line each, and an empty line at the end.
    """
    steps = json.loads(found.json({}, {}))["steps"]
    names = names_in_both(
        (side_of(step)["lane"], _agents(step.get("a"), step.get("b"))) for step in steps
    )
    ordered = by_end(steps, [side.starts for side in compared])
    firsts = first_changes(steps, ordered, names, [side.failed_calls for side in compared])
    lines = [
        *_model_lines(found, steps, names),
        *_setup_lines(compared),
        *(each.line for each in firsts),
    ]
    yield from map(printable, lines)
    if lines:
        yield ""


def _agents(a: Row | None, b: Row | None) -> tuple[str | None, str | None]:
    return (a or {}).get("agent"), (b or {}).get("agent")


def _model_lines(
    found: Comparison, steps: Sequence[Row], names: Mapping[str, str]
) -> Iterator[str]:
    for each in found.model_changes:
        place = step_place(steps[each.step - 1], names)
        yield f"model: {each.a} -> {each.b}{''.join(model_words(each.requests, place))}"


def _setup_lines(compared: Sequence[Side]) -> Iterator[str]:
    a, b = (side.about for side in compared)
    for each in setup_changes(a, b):
        note = f" ({each.note})" if each.note else ""
        yield f"{each.name}: {each.a} -> {each.b}{note}"
    if unknown := setup_unknown(a, b):
        yield f"recorded in neither: {', '.join(unknown)}"
