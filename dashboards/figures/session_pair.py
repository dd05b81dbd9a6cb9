"""Two sessions side by side: their totals, then their aligned steps, with a mark at each difference.

The figure is drawn from the output of `agentobs diff --json` and contains no content: it shows which steps differ in
their texts, but not the texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import plotly.graph_objects as go

from agentobs.records.cost_difference import Cost, cost_difference, share_words
from agentobs.records.display import of_both, seconds
from agentobs.store.analysis.lane_names import names_in_both
from dashboards.figures.phrases import (
    Row,
    certain_money,
    certainty_prefix,
    count,
    empty_figure,
    money,
    plain,
    uncertainties,
)
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
"""The maximum number of rows of steps, including rows for omitted steps. Our choice."""
CONTEXT_STEPS = 1
"""The number of identical steps that are drawn before and after a step that differs. Our choice."""
CHANGES: Final = {
    "same": ("identical", STEEL, "circle"),
    "changed": ("changed", PURPLE, "diamond"),
    "removed": ("only in A", RED, "x"),
    "added": ("only in B", GREEN, "cross"),
}
"""The states of a step: label, color, symbol."""
_TOTALS = (
    ("attempts", "requests"),
    ("tool calls", "tool_calls"),
    ("permission decisions", "decisions"),
    ("uncached input tokens", "input_tokens"),
    ("cache read tokens", "cache_read_tokens"),
    ("cache write tokens", "cache_write_tokens"),
    ("output tokens", "output_tokens"),
    ("cost", "cost_usd"),
    ("duration", "session_duration_ns"),
)
_INNER = 0.21
"""The distance of both sides from the middle, which contains the names of the totals. The axis is from -1 to 1."""
_BAR_LENGTH = 0.4
"""The length of the longer bar of a pair."""
_ROW_HEIGHT = 22
"""The height of a row in pixels. Our choice."""
_SIDE_LENGTH = 34
"""The maximum number of characters next to a step on each side, so that they fit into 700 pixels. Our choice."""
_DESCRIPTION_LENGTH = 24
"""The maximum number of characters of the description of a step, in the middle."""


@dataclass(frozen=True, slots=True)
class _Sheet:
    """A figure with its annotations and shapes, which are added at once: adding hundreds one by one takes seconds."""

    figure: go.Figure
    notes: list[dict[str, Any]] = field(default_factory=list)
    shapes: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Step:
    """A row of steps: a step of each side, or the number of identical steps that are omitted."""

    pair: Row | None
    left_out: int = 0


def two_sessions(comparison: Mapping[str, Any]) -> go.Figure:
    """Return two sessions side by side: their totals as pairs of bars, and their steps below.

    Args:
        comparison: the parsed output of `agentobs diff --json`.
    """
    a, b = (_dict(comparison.get(side)) for side in "ab")
    pairs = [pair for pair in _list(comparison.get("steps")) if isinstance(pair, Mapping)]
    totals = [(name, key) for name, key in _TOTALS if _amount(a, key) or _amount(b, key)]
    if not (totals or pairs):
        return empty_figure()
    figure = go.Figure(layout=layout(barmode="overlay", bargap=0.35, legend_traceorder="normal"))
    sheet = _Sheet(figure)
    _write_titles(sheet, a, b)
    _add_totals(sheet, totals, a, b)
    top = len(totals) + 1
    rows = _rows(pairs)
    if rows:
        _write(sheet, 0, top - 1, "turn and step", anchor="center")
    shown_rows, omitted_rows = rows[:MOST_STEPS], rows[MOST_STEPS:]
    lane = None
    at = top
    names = lane_names(pairs)
    positions: list[tuple[int, Row]] = []
    for row in shown_rows:
        if row.pair is not None and len(names) > 1 and _lane(row.pair) != lane:
            lane = _lane(row.pair)
            _write(sheet, 0, at, plain(names[lane], 60), color=INK, anchor="center", size=11)
            at += 1
        if row.pair is None:
            _write_left_out(sheet, at, row.left_out)
        else:
            positions.append((at, row.pair))
        at += 1
    _add_steps(sheet, positions)
    if omitted_rows:
        steps = sum(row.left_out or 1 for row in omitted_rows)
        _write(
            sheet,
            0,
            at,
            f"and {count(steps, 'more step')}{_changes_of(omitted_rows)}",
            anchor="center",
        )
        at += 1
    figure.update_layout(
        height=at * _ROW_HEIGHT + 100, annotations=sheet.notes, shapes=sheet.shapes
    )
    figure.update_xaxes(visible=False, range=[-1, 1], fixedrange=True)
    figure.update_yaxes(visible=False, range=[at - 0.4, -1.7], fixedrange=True)
    return figure


def lane_names(steps: Sequence[Row]) -> dict[str, str]:
    """Return the display names of the lanes of a comparison: those in the sessions, if they are known."""
    return names_in_both(
        (_lane(step), (_dict(step.get("a")).get("agent"), _dict(step.get("b")).get("agent")))
        for step in steps
    )


def _changes_of(cut: Sequence[_Step]) -> str:
    """Return the numbers of changed, added and removed steps that are not drawn."""
    kinds = [str(line.pair.get("change")) for line in cut if line.pair is not None]
    counts = [
        f"{kinds.count(change):,} {name}"
        for change, (name, _, _) in CHANGES.items()
        if change != "same" and change in kinds
    ]
    return f": {', '.join(counts)}" if counts else ", all identical"


def _write_titles(sheet: _Sheet, a: Row, b: Row) -> None:
    for x, side, session, anchor in ((-_INNER, "A", a, "right"), (_INNER, "B", b, "left")):
        session_id = str(session.get("session_id") or "")
        name = plain(session.get("name") or "unnamed", 24)
        end = f" …{plain(session_id[-6:])}" if len(session_id) > 12 else ""
        ended = f", {plain(session['outcome'], 12)}" if session.get("outcome") else ""
        _write(sheet, x, -1, f"{side}: {name}{end}{ended}", anchor=anchor, color=INK)


def _add_totals(sheet: _Sheet, totals: Sequence[tuple[str, str]], a: Row, b: Row) -> None:
    """Draw a pair of bars for each total, relative to the larger value, with the values at their ends."""
    sides = (("A", a, -1, Mark(BLUE)), ("B", b, 1, Mark(ORANGE, "/")))
    for side, session, sign, mark in sides:
        lengths, texts = [], []
        for name, key in totals:
            value, most = _amount(session, key), max(_amount(a, key) or 0, _amount(b, key) or 0)
            lengths.append(float((value or 0) / most) * _BAR_LENGTH if most else 0.0)
            texts.append(f"{side}: {name} {_measure(session, key)}")
        sheet.figure.add_bar(
            orientation="h",
            name=f"{side}, total",
            base=sign * _INNER,
            x=[sign * length for length in lengths],
            y=list(range(len(totals))),
            width=0.6,
            marker=bar(mark),
            hovertext=texts,
            hovertemplate="%{hovertext}<extra></extra>",
        )
        for at, ((_, key), length) in enumerate(zip(totals, lengths, strict=True)):
            difference = _difference(key, a, b) if side == "B" else ""
            text = f"{_measure(session, key)}{f' ({difference})' if difference else ''}"
            anchor = "left" if sign > 0 else "right"
            _write(sheet, sign * (_INNER + length + 0.015), at, text, anchor=anchor)
    for at, (name, _) in enumerate(totals):
        _write(sheet, 0, at, name, anchor="center", color=INK)


def _rows(pairs: Sequence[Row]) -> list[_Step]:
    """Return the rows of steps. Identical steps that are far from any difference are omitted."""
    near: set[int] = set()
    for at, pair in enumerate(pairs):
        if pair.get("change") != "same":
            near.update(range(at - CONTEXT_STEPS, at + CONTEXT_STEPS + 1))
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
    _write(sheet, 0, at, count(number, "identical step"), anchor="center")
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
    """Draw a mark on each side that has the step, with its properties next to it."""
    for change, (name, color, symbol) in CHANGES.items():
        changed_pairs = [(at, pair) for at, pair in placed if pair.get("change") == change]
        marks = [
            (sign * _INNER, at, pair)
            for at, pair in changed_pairs
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
            hovertext=[_hover_text(pair) for _, _, pair in marks],
            hovertemplate="%{hovertext}<extra></extra>",
        )
    for at, pair in placed:
        is_same = pair.get("change") == "same"
        if not is_same:
            _shade(sheet, at)
        _write(sheet, 0, at, _description(pair), anchor="center", color=FAINT if is_same else INK)
        for sign, side, anchor in ((-1, "a", "right"), (1, "b", "left")):
            part = _dict(pair.get(side))
            if part:
                _write(sheet, sign * (_INNER + 0.03), at, _side_text(part, pair), anchor=anchor)


def _shade(sheet: _Sheet, at: int) -> None:
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


def _description(pair: Row, most: int = _DESCRIPTION_LENGTH) -> str:
    """Return a short description of a step, such as `2: calls bash`."""
    step = _existing_step(pair)
    turns = (_dict(pair.get(side)).get("turn") for side in "ab")
    turn = of_both(*(f"{each}" if isinstance(each, int) else "" for each in turns))
    turn = f"{turn}: " if turn else ""
    kinds = {"request": "model request", "tool_call": "calls", "decision": "permission for"}
    kind = kinds.get(str(step.get("kind")), "step")
    name = "" if step.get("kind") == "request" else f" {step.get('name') or ''}"
    return plain(f"{turn}{kind}{name}", most)


def _side_text(part: Row, pair: Row) -> str:
    """Return the text about a step on one side: first the properties that differ, then tokens, cost or time."""
    differs = [name for name in _differs(pair) if name in _PROPERTIES]
    if pair.get("change") in ("added", "removed"):
        differs = [name for name in ("outcome", "stop_reason") if part.get(name)]
    texts = [_PROPERTIES[name].format(_value(part.get(name))) for name in differs]
    is_different = any(name not in _PROPERTIES for name in _differs(pair))
    texts += ["different content"] if is_different else []
    if part.get("input_tokens") is not None:
        texts.append(f"{_measure(part, 'input_tokens')} in, {_measure(part, 'output_tokens')} out")
    if (cost := _amount(part, "cost_usd")) is not None:
        texts.append(certain_money(cost, [part]))
    elif part.get("duration_ns") is not None:
        texts.append(_time(part))
    while len(texts) > 1 and len(" · ".join(texts)) > _SIDE_LENGTH:
        texts.pop()
    return plain(" · ".join(texts), _SIDE_LENGTH)


_PROPERTIES: Final = {
    "name": "{}",
    "model": "{}",
    "outcome": "{}",
    "stop_reason": "{}",
    "calls": "calls {}",
    "input_bytes": "{} bytes in",
    "result_bytes": "{} bytes out",
}
"""The properties of a step, as in `replay.divergence.session_diff.COMPARED`, with the format of each."""


def _differs(pair: Row) -> list[str]:
    return [str(each) for each in _list(pair.get("differs"))]


def _hover_text(pair: Row) -> str:
    """Return all details of a pair of steps except content."""
    part = _existing_step(pair)
    lines = [f"{_description(pair, 40)}, lane {plain(part.get('lane'), 40)}"]
    for side in "ab":
        step = _dict(pair.get(side))
        if step:
            properties = [
                f"{key.replace('_', ' ')} {plain(_value(step[key]), 40)}"
                for key in _PROPERTIES
                if step.get(key)
            ]
            duration = _time(step) if step.get("duration_ns") else None
            cost = _amount(step, "cost_usd")
            measures = [
                each
                for each in (
                    duration,
                    None if cost is None else certain_money(cost, [step]),
                )
                if each
            ]
            lines.append(f"{side.upper()}: {', '.join([*properties, *measures])}")
    if differs := _differs(pair):
        names = ("content" if each == "texts" else each.replace("_", " ") for each in differs)
        lines.append(f"differs in: {plain(', '.join(names))}")
    return "<br>".join(lines)


def _measure(one: Row, key: str) -> str:
    value = _amount(one, key)
    if key == "cost_usd":
        return money(None) if value is None else certain_money(value, [one])
    if key == "session_duration_ns":
        return "unknown" if value is None else str(seconds(int(value)))
    is_low = key == "output_tokens" and _is_low(one)
    return f"{'at least ' if is_low else ''}{int(value or 0):,}"


def _is_low(one: Row) -> bool:
    """Return whether the output tokens of a step or a session are a lower bound."""
    return bool(one.get("lower_bound_calls")) or one.get("counts_status") == "lower_bound"


def _difference(key: str, a: Row, b: Row) -> str:
    """Return how a total of B differs from that of A; empty if a value is unknown."""
    old, new = _amount(a, key), _amount(b, key)
    if old is None or new is None:
        return ""
    if key == "cost_usd" and certainty_prefix([a, b]):
        found = cost_difference(Cost(old, *uncertainties(a)), Cost(new, *uncertainties(b)))
        if found is None or found.is_open:  # the values are next to their bars
            return ""
        return found.words((money(old), money(new)))
    is_old_low, is_new_low = (key == "output_tokens" and _is_low(each) for each in (a, b))
    if is_old_low and is_new_low:
        return ""
    if old == new:
        return "" if is_old_low or is_new_low else "identical"
    less = "less" if key in ("cost_usd", "session_duration_ns") else "fewer"
    word = "more" if new > old else less
    if not old:
        return "none in A"
    if is_old_low or is_new_low:
        # A share of a lower bound would be misleading, so the difference is given as a number.
        return f"at least {abs(new - old):,} {word}" if (new > old) == is_new_low else ""
    share = share_words(old, new)
    return f"{share} {word}" if share.endswith("%") else share


def _amount(one: Row, key: str) -> Decimal | None:
    """Return a value as a number. JSON contains it as a number or as text."""
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


def _existing_step(pair: Row) -> Row:
    """Return the step of B, or the step of A if B has none."""
    return _dict(pair.get("b")) or _dict(pair.get("a"))


def _lane(pair: Row) -> str:
    return str(_existing_step(pair).get("lane") or "unknown lane")


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
