"""Two sessions side by side: their totals, then their aligned steps, with a mark at each difference.

It is drawn from the output of `agentobs diff --json`, without content: of texts that differ it shows only that they do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import plotly.graph_objects as go

from agentobs.records.display import seconds
from dashboards.figures.phrases import Row, count, money, nothing, plain, sureness
from dashboards.style import (
    BLUE,
    FAINT,
    GREEN,
    GRID,
    INK,
    ORANGE,
    PURPLE,
    RED,
    STEEL,
    Mark,
    bar,
    layout,
)

MOST_STEPS = 60
"""How many rows of steps are drawn, including those for omitted steps. Our choice."""
AROUND = 1
"""How many equal steps are drawn before and after those that differ. Our choice."""
CHANGES: Final = {
    "same": ("the same", STEEL, "circle"),
    "changed": ("changed", PURPLE, "diamond"),
    "removed": ("only in A", RED, "x"),
    "added": ("only in B", GREEN, "cross"),
}
"""The states of a step: label, color, symbol."""
_TOTALS = (
    ("requests", "requests"),
    ("tool calls", "tool_calls"),
    ("decisions", "decisions"),
    ("input tokens", "input_tokens"),
    ("cache read tokens", "cache_read_tokens"),
    ("cache write tokens", "cache_write_tokens"),
    ("output tokens", "output_tokens"),
    ("cost", "cost_usd"),
    ("total step time", "duration_ns"),
)
_INNER = 0.21
"""Where both sides begin; the names of the measures are in between. The axis is from -1 to 1."""
_LONGEST = 0.4
"""The length of the longer bar of a pair."""
_LINE = 22
"""The height of a row in pixels. Our choice."""
_SIDE = 34
"""How many characters of text are next to a step on each side: what fits 700 pixels. Our choice."""
_MIDDLE = 20


@dataclass(frozen=True, slots=True)
class _Sheet:
    """A figure with its annotations and shapes: plotly accepts hundreds of them at once, or takes seconds."""

    figure: go.Figure
    notes: list[dict[str, Any]] = field(default_factory=list)
    shapes: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Step:
    """A row of steps: one on each side, or a number of omitted equal ones."""

    pair: Row | None
    left_out: int = 0


def two_sessions(comparison: Mapping[str, Any]) -> go.Figure:
    """Return two sessions side by side: their totals as pairs of bars, and their steps below.

    Args:
        comparison: the output of `agentobs diff --json`, parsed.
    """
    a, b = (_dict(comparison.get(side)) for side in "ab")
    pairs = [pair for pair in _list(comparison.get("steps")) if isinstance(pair, Mapping)]
    totals = [(name, key) for name, key in _TOTALS if _amount(a, key) or _amount(b, key)]
    if not (totals or pairs):
        return nothing()
    figure = go.Figure(layout=layout(barmode="overlay", bargap=0.35, legend_traceorder="normal"))
    sheet = _Sheet(figure)
    _head(sheet, a, b)
    _add_totals(sheet, totals, a, b)
    top = len(totals) + 1
    lines = _lines(pairs)
    if lines:
        _write(sheet, 0, top - 1, "turn and step", anchor="center")
    drawn, cut = lines[:MOST_STEPS], lines[MOST_STEPS:]
    lane = None
    at = top
    has_lanes = len({_lane(pair) for pair in pairs}) > 1
    placed: list[tuple[int, Row]] = []
    for line in drawn:
        if line.pair is not None and has_lanes and _lane(line.pair) != lane:
            lane = _lane(line.pair)
            _write(sheet, 0, at, plain(lane, 60), color=INK, anchor="center", size=11)
            at += 1
        if line.pair is None:
            _write_left_out(sheet, at, line.left_out)
        else:
            placed.append((at, line.pair))
        at += 1
    _add_steps(sheet, placed)
    if cut:
        steps = sum(line.left_out or 1 for line in cut)
        _write(sheet, 0, at, f"and {count(steps, 'step')} more{_of_them(cut)}", anchor="center")
        at += 1
    figure.update_layout(height=at * _LINE + 100, annotations=sheet.notes, shapes=sheet.shapes)
    figure.update_xaxes(visible=False, range=[-1, 1], fixedrange=True)
    figure.update_yaxes(visible=False, range=[at - 0.4, -1.7], fixedrange=True)
    return figure


def _of_them(cut: Sequence[_Step]) -> str:
    """Return the states of steps that are drawn: the legend has no others."""
    kinds = [str(line.pair.get("change")) for line in cut if line.pair is not None]
    told = [
        f"{kinds.count(change):,} {name}"
        for change, (name, _, _) in CHANGES.items()
        if change != "same" and change in kinds
    ]
    return f": {', '.join(told)}" if told else ", all the same"


def _head(sheet: _Sheet, a: Row, b: Row) -> None:
    for x, side, one, anchor in ((-_INNER, "A", a, "right"), (_INNER, "B", b, "left")):
        which = str(one.get("session_id") or "")
        name = plain(one.get("name") or "unnamed", 24)
        end = f" …{plain(which[-6:])}" if len(which) > 12 else ""
        ended = f", {plain(one['outcome'], 12)}" if one.get("outcome") else ""
        _write(sheet, x, -1, f"{side}: {name}{end}{ended}", anchor=anchor, color=INK)


def _add_totals(sheet: _Sheet, totals: Sequence[tuple[str, str]], a: Row, b: Row) -> None:
    """Draw a pair of bars for each measure, to the scale of the longer one, with the values at their ends."""
    sides = (("A", a, -1, Mark(BLUE)), ("B", b, 1, Mark(ORANGE, "/")))
    for side, one, sign, mark in sides:
        lengths, texts = [], []
        for name, key in totals:
            value, most = _amount(one, key), max(_amount(a, key) or 0, _amount(b, key) or 0)
            lengths.append(float((value or 0) / most) * _LONGEST if most else 0.0)
            texts.append(f"{side}: {name} {_measure(one, key)}")
        sheet.figure.add_bar(
            orientation="h",
            name=f"{side}, in all",
            base=sign * _INNER,
            x=[sign * length for length in lengths],
            y=list(range(len(totals))),
            width=0.6,
            marker=bar(mark),
            hovertext=texts,
            hovertemplate="%{hovertext}<extra></extra>",
        )
        for at, ((_, key), length) in enumerate(zip(totals, lengths, strict=True)):
            by = _by(key, a, b) if side == "B" else ""
            text = f"{_measure(one, key)}{f' ({by})' if by else ''}"
            anchor = "left" if sign > 0 else "right"
            _write(sheet, sign * (_INNER + length + 0.015), at, text, anchor=anchor)
    for at, (name, _) in enumerate(totals):
        _write(sheet, 0, at, name, anchor="center", color=INK)


def _lines(pairs: Sequence[Row]) -> list[_Step]:
    """Return the steps, without equal ones far from any difference."""
    near: set[int] = set()
    for at, pair in enumerate(pairs):
        if pair.get("change") != "same":
            near.update(range(at - AROUND, at + AROUND + 1))
    lines: list[_Step] = []
    for at, pair in enumerate(pairs):
        if at in near:
            lines.append(_Step(pair))
        elif lines and lines[-1].left_out:
            lines[-1] = _Step(None, lines[-1].left_out + 1)
        else:
            lines.append(_Step(None, 1))
    return lines


def _write_left_out(sheet: _Sheet, at: int, number: int) -> None:
    _write(sheet, 0, at, count(number, "equal step"), anchor="center")
    for sign in (-1, 1):
        sheet.shapes.append(
            dict(
                type="line",
                x0=sign * _INNER,
                x1=sign * 0.98,
                y0=at,
                y1=at,
                line=dict(color=GRID, width=1, dash="dot"),
            )
        )


def _add_steps(sheet: _Sheet, placed: Sequence[tuple[int, Row]]) -> None:
    """Draw a mark on each side that has a step, with its measures next to it."""
    for change, (name, color, symbol) in CHANGES.items():
        own = [(at, pair) for at, pair in placed if pair.get("change") == change]
        marks = [
            (sign * _INNER, at, pair)
            for at, pair in own
            for sign, side in ((-1, "a"), (1, "b"))
            if pair.get(side)
        ]
        if not marks:
            continue
        sheet.figure.add_scatter(
            name=name,
            mode="markers",
            x=[x for x, _, _ in marks],
            y=[at for _, at, _ in marks],
            marker=dict(color=color, symbol=symbol, size=10 if change != "same" else 7),
            hovertext=[_told(pair) for _, _, pair in marks],
            hovertemplate="%{hovertext}<extra></extra>",
        )
    for at, pair in placed:
        is_same = pair.get("change") == "same"
        if not is_same:
            _ground(sheet, at)
        _write(sheet, 0, at, _what(pair), anchor="center", color=FAINT if is_same else INK)
        for sign, side, anchor in ((-1, "a", "right"), (1, "b", "left")):
            part = _dict(pair.get(side))
            if part:
                _write(sheet, sign * (_INNER + 0.03), at, _side(part, pair), anchor=anchor)


def _ground(sheet: _Sheet, at: int) -> None:
    sheet.shapes.append(
        dict(
            type="rect",
            x0=-1,
            x1=1,
            y0=at - 0.5,
            y1=at + 0.5,
            fillcolor=GRID,
            opacity=0.5,
            line_width=0,
            layer="below",
        )
    )


def _what(pair: Row, most: int = _MIDDLE) -> str:
    """Return a short description of a step."""
    part = _part(pair)
    turn = f"{part['turn']}: " if isinstance(part.get("turn"), int) else ""
    verb = {"request": "asks", "tool_call": "calls", "decision": "decides on"}.get(
        str(part.get("kind")), "does"
    )
    name = "" if part.get("kind") == "request" else f" {part.get('name') or ''}"
    return plain(f"{turn}{verb}{name}", most)


def _side(part: Row, pair: Row) -> str:
    """Return a step on one side: differences first, then its measures."""
    differs = [name for name in _differs(pair) if name in _SHOWN]
    if pair.get("change") in ("added", "removed"):
        differs = [name for name in ("outcome", "stop_reason") if part.get(name)]
    told = [_SHOWN[name].format(_value(part.get(name))) for name in differs]
    told += ["other words"] if "texts" in _differs(pair) else []
    if part.get("input_tokens") is not None:
        told.append(f"{_measure(part, 'input_tokens')} in, {_measure(part, 'output_tokens')} out")
    if (cost := _amount(part, "cost_usd")) is not None:
        told.append(f"{sureness([part])}{money(cost)}")
    elif part.get("duration_ns") is not None:
        told.append(_time(part))
    while len(told) > 1 and len(" · ".join(told)) > _SIDE:
        told.pop()
    return plain(" · ".join(told), _SIDE)


_SHOWN: Final = {
    "name": "{}",
    "model": "{}",
    "outcome": "{}",
    "stop_reason": "{}",
    "calls": "calls {}",
    "input_bytes": "{} B in",
    "result_bytes": "{} B result",
}
"""The properties of a step, as in `replay.divergence.session_diff.COMPARED`, and how they are shown."""


def _differs(pair: Row) -> list[str]:
    return [str(each) for each in _list(pair.get("differs"))]


def _told(pair: Row) -> str:
    """Return all details of a pair of steps except content."""
    part = _part(pair)
    lines = [f"{_what(pair, 40)}, lane {plain(part.get('lane'), 40)}"]
    for side in "ab":
        one = _dict(pair.get(side))
        if one:
            shown = [
                f"{key.replace('_', ' ')} {plain(_value(one[key]), 40)}"
                for key in _SHOWN
                if one.get(key)
            ]
            took = _time(one) if one.get("duration_ns") else None
            cost = _amount(one, "cost_usd")
            more = [
                each
                for each in (took, None if cost is None else f"{sureness([one])}{money(cost)}")
                if each
            ]
            lines.append(f"{side.upper()}: {', '.join([*shown, *more])}")
    if differs := _differs(pair):
        names = ("content" if each == "texts" else each.replace("_", " ") for each in differs)
        lines.append(f"differs in: {plain(', '.join(names))}")
    return "<br>".join(lines)


def _measure(one: Row, key: str) -> str:
    value = _amount(one, key)
    if key == "cost_usd":
        return f"{sureness([one]) if value is not None else ''}{money(value)}"
    if key == "duration_ns":
        return _time(one)
    return f"{int(value or 0):,}"


def _by(key: str, a: Row, b: Row) -> str:
    """Return how B differs from A; an empty string if that is unknown."""
    old, new = _amount(a, key), _amount(b, key)
    if old is None or new is None or (key == "cost_usd" and sureness([a, b])):
        return ""
    if old == new:
        return "the same"
    word = "more" if new > old else "less"
    if not old:
        return "none in A"
    share = abs(new - old) / old * 100
    return f"{share:,.0f}% {word}" if share >= 1 else f"a little {word}"


def _amount(one: Row, key: str) -> Decimal | None:
    """Return a measure, which is a number or the text of one in JSON."""
    value = one.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        return None
    try:
        found = Decimal(str(value))
    except InvalidOperation:
        return None
    return found if found.is_finite() else None


def _time(one: Row) -> str:
    return str(seconds(int(_amount(one, "duration_ns") or 0)))


def _value(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else "none" if value is None else str(value)


def _part(pair: Row) -> Row:
    """Return the existing step of a pair, that of B if both exist."""
    return _dict(pair.get("b")) or _dict(pair.get("a"))


def _lane(pair: Row) -> str:
    return str(_part(pair).get("lane") or "unknown lane")


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _dict(value: Any) -> Row:
    return value if isinstance(value, Mapping) else {}


def _write(
    sheet: _Sheet,
    x: float,
    y: float,
    text: str,
    *,
    anchor: str,
    color: str = FAINT,
    size: int = 11,
) -> None:
    sheet.notes.append(
        dict(
            x=x, y=y, text=text, showarrow=False, xanchor=anchor, font=dict(color=color, size=size)
        )
    )
