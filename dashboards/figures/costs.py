"""Figures of costs: by model, day, agent and session, savings by caching, and cost of cache misses.

Costs are shown with their certainty: sums are prefixed with `at least` or `about`, and items without a price are named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import plotly.graph_objects as go

from dashboards.figures.days import Calendar, calendar, day_of, draw_days
from dashboards.figures.phrases import (
    Row,
    amount,
    count,
    doubt,
    lane_of,
    money,
    name_of,
    named_rows,
    nothing,
    plain,
)
from dashboards.style import FAINT, INK, PARTS_OF_COST, RED, TOKENS, Mark, bar, layout

PARTS = {
    "input": "input_usd",
    "cache read": "cache_read_usd",
    "cache write 5 m": "cache_write_5m_usd",
    "cache write 1 h": "cache_write_1h_usd",
    "output": "output_usd",
    "server tools": "server_tools_usd",
}
"""The parts of a cost in stacking order, with their columns."""
MOST_AGENTS = 24
"""How many names have their own bars; the last bar shows the rest. Our choice."""
NAME = 32
"""How many characters of a name are shown next to a bar; the rest is in its hover text. Our choice."""
NOTE_SHARE = 0.0145
"""The width of a character of a note next to a bar, as a fraction: 6 of 415 pixels, in a figure of half a page."""
_COUNTS = ("calls", "unpriced_calls", "lower_bound_calls", "estimated_calls")


def cost_by_model(rows: Sequence[Row]) -> go.Figure:
    """Return stacked bars of the cost of each model by part, the most expensive on top.

    Args:
        rows: the rows of the query `cost_by_model`; money in US dollars, None if a price is unknown.
    """
    return _named(rows, [str(row["model"] or "a model without a name") for row in rows], "models")


def cost_by_agent(rows: Sequence[Row]) -> go.Figure:
    """Return stacked bars of the cost of each agent of each session by part, the most expensive on top.

    Args:
        rows: the rows of the query `cost_by_agent`.
    """
    return _named(rows, [_agent(row) for row in rows], "agents")


def cost_by_name(rows: Sequence[Row]) -> go.Figure:
    """Return stacked bars of the cost of all sessions with the same name, sub-agents included, the most expensive on
    top.

    Args:
        rows: the rows of the query `cost_by_name`.
    """
    return _named(rows, [name_of(row, NAME) for row in rows], "names")


def cost_by_day(rows: Sequence[Row]) -> go.Figure:
    """Return stacked bars of the cost of each day (UTC) by part, the first day on the left.

    Days without a call are gaps. A long period is grouped by week, month or year. Bars that are not exact have a mark
    above them.

    Args:
        rows: the rows of the query `cost_by_day`.
    """
    known = [(day, row) for row in rows if (day := day_of(row["day"])) is not None]
    axis = calendar(day for day, _ in known)
    if axis is None:
        return nothing()
    grouped: dict[Any, list[Row]] = {}
    for day, row in sorted(known, key=lambda each: each[0]):
        grouped.setdefault(axis.start(day), []).append(row)
    bars = {start: _together(each) for start, each in grouped.items()}
    figure = go.Figure(layout=layout(height=320, barmode="stack", legend_traceorder="normal"))
    for part, column in _drawn(bars.values()):
        _add_days(figure, axis, bars, part, column)
    _mark_days(figure, axis, bars)
    draw_days(figure, axis)
    figure.update_yaxes(title_text="US dollars", **_DOLLARS)
    return figure


def cache_efficiency(rows: Sequence[Row]) -> go.Figure:
    """Return bars of the sources of the input of sessions, with the savings by caching, in the order of the rows.

    Args:
        rows: the rows of the query `cache_by_name`, `cache_efficiency` or `cache_by_session`.
    """
    columns = ("cache_read_tokens", "cache_write_tokens", "input_tokens")
    rest = rows[MOST_AGENTS:]
    shown = [
        *rows[:MOST_AGENTS],
        *([_summed(rest, (*columns, "saved_usd", "calls", "unpriced_calls"))] if rest else []),
    ]
    if not shown:
        return nothing()
    names = [plain(name_of(row, NAME), NAME) for row in rows[:MOST_AGENTS]]
    names += [f"{len(rest):,} more"] if rest else []
    totals = [sum(row[column] or 0 for column in columns) for row in shown]
    figure = go.Figure(layout=layout(barmode="stack", legend_traceorder="normal"))
    for column in columns:
        figure.add_bar(
            orientation="h",
            name=_SOURCES[column],
            y=list(range(len(shown))),
            x=[
                100 * (r[column] or 0) / n if n else None
                for r, n in zip(shown, totals, strict=True)
            ],
            customdata=[row[column] or 0 for row in shown],
            marker=bar(TOKENS[column]),
            hovertext=[
                f"{name}<br>{_SOURCES[column]}: {row[column] or 0:,} of {count(total, 'token')}"
                for name, row, total in zip(names, shown, totals, strict=True)
            ],
            hovertemplate="%{hovertext}<extra></extra>",
        )
    notes = [
        (100, _saved(row)) if total else (0, "no input")
        for row, total in zip(shown, totals, strict=True)
    ]
    _beside(figure, notes)
    named_rows(figure, names)
    taken = min(max(len(text) for _, text in notes) * NOTE_SHARE, 0.55)
    figure.update_xaxes(
        title_text="share of input tokens, %", range=[0, 100 / (1 - taken)], tickvals=_SHARES
    )
    return figure


def cache_waste(rows: Sequence[Row]) -> go.Figure:
    """Return bars of the cost of tokens paid again after cache misses, by reason, the most expensive on top.

    Args:
        rows: the rows of the query `cache_waste`.
    """
    if not rows:
        return nothing("no call was billed again for tokens that were already cached")
    reasons: dict[str, list[Row]] = {}
    for row in rows:
        reasons.setdefault(str(row["reason"] or "unknown"), []).append(row)
    summed = {reason: _wasted(found) for reason, found in reasons.items()}
    has_price = any(row["wasted_usd"] is not None for row in summed.values())
    drawn = "wasted_usd" if has_price else "missed_tokens"
    order = sorted(summed, key=lambda reason: (-(summed[reason][drawn] or 0), reason))
    shown = [(plain(_reason(each), NAME), summed[each]) for each in order[:MOST_AGENTS]]
    if rest := order[MOST_AGENTS:]:
        shown.append((f"{len(rest):,} more", _wasted([r for each in rest for r in reasons[each]])))
    figure = go.Figure(layout=layout(showlegend=False))
    figure.add_bar(
        orientation="h",
        name="wasted",
        y=list(range(len(shown))),
        x=[_number(row[drawn]) for _, row in shown],
        marker=bar(Mark(RED, "/")),
        hovertext=[f"{name}<br>{_waste(row)}" for name, row in shown],
        hovertemplate="%{hovertext}<extra></extra>",
    )
    most = max(float(row[drawn] or 0) for _, row in shown)
    ends = []
    for _, row in shown:
        least = "at least " if row["unpriced_calls"] and row["wasted_usd"] is not None else ""
        text = f"{least}{money(row['wasted_usd'])} · {count(row['missed_tokens'], 'token')}"
        ends.append((float(row[drawn] or 0), text))
    _beside(figure, ends)
    named_rows(figure, [name for name, _ in shown], above=8)
    title = "US dollars beyond reading it from the cache (estimated)" if has_price else "tokens"
    figure.update_xaxes(
        title_text=title, range=[0, most * 1.9 or 1], **(_DOLLARS if has_price else {})
    )
    return figure


_SOURCES = {
    "cache_read_tokens": "read from the cache",
    "cache_write_tokens": "written to the cache",
    "input_tokens": "plain input",
}
_SHARES = [0, 25, 50, 75, 100]
_DOLLARS: Mapping[str, Any] = {
    "tickprefix": "$",
    "exponentformat": "none",
    "separatethousands": True,
    "rangemode": "tozero",
    "nticks": 6,
}
"""Small amounts are shown in dollars, too, without SI prefixes."""
_DOUBTS = (
    ("unpriced_calls", "calls without a price", "x"),
    ("lower_bound_calls", "at least", "triangle-up"),
    ("estimated_calls", "estimated", "diamond-open"),
)


def _named(rows: Sequence[Row], names: Sequence[str], what: str) -> go.Figure:
    """Return a bar for each row, with its name next to it and the sum at its end."""
    first, rest = [_together([row]) for row in rows[:MOST_AGENTS]], rows[MOST_AGENTS:]
    if not first:
        return nothing()
    labels = [plain(name, NAME) for name in names[: len(first)]]
    full = [plain(name) for name in names[: len(first)]]
    if rest:
        first.append(_together(rest))
        labels.append(f"{len(rest):,} more")
        full.append(f"{len(rest):,} more {what}")
    figure = go.Figure(layout=layout(barmode="stack", legend_traceorder="normal"))
    for part, column in _drawn(first):
        figure.add_bar(
            orientation="h",
            name=part,
            y=list(range(len(first))),
            x=[_number(row[column]) for row in first],
            marker=bar(PARTS_OF_COST[column]),
            hovertext=[
                _told(name, part, row, column) for name, row in zip(full, first, strict=True)
            ],
            hovertemplate="%{hovertext}<extra></extra>",
        )
    _beside(figure, [(float(row["cost_usd"] or 0), amount(row)) for row in first])
    named_rows(figure, labels)
    most = max(float(row["cost_usd"] or 0) for row in first)
    figure.update_xaxes(title_text="US dollars", **_DOLLARS)
    # The notes at the ends of the bars need space.
    figure.update_xaxes(range=[0, most * 1.35 or 1])
    return figure


def _add_days(
    figure: go.Figure, axis: Calendar, bars: Mapping[Any, Row], part: str, column: str
) -> None:
    figure.add_bar(
        name=part,
        x=[axis.middle(start) for start in bars],
        y=[_number(row[column]) for row in bars.values()],
        width=axis.width_ms,
        marker=bar(PARTS_OF_COST[column]),
        hovertext=[_told(axis.name(start), part, row, column) for start, row in bars.items()],
        hovertemplate="%{hovertext}<extra></extra>",
    )


def _mark_days(figure: go.Figure, axis: Calendar, bars: Mapping[Any, Row]) -> None:
    """Put a mark above each bar that is not exact, for its most serious reason."""
    most = max(float(row["cost_usd"] or 0) for row in bars.values()) or 1.0
    marked = {
        start: next((key for key, _, _ in _DOUBTS if row[key]), None) for start, row in bars.items()
    }
    for key, text, symbol in _DOUBTS:
        starts = [start for start, found in marked.items() if found == key]
        if not starts:
            continue
        figure.add_scatter(
            mode="markers",
            name=text,
            x=[axis.middle(start) for start in starts],
            y=[float(bars[start]["cost_usd"] or 0) + most * 0.035 for start in starts],
            marker=dict(symbol=symbol, size=8, color=INK, line=dict(width=1.5, color=INK)),
            hovertext=[
                f"{axis.name(start)}<br>{amount(bars[start])}<br>{doubt(bars[start])}"
                for start in starts
            ],
            hovertemplate="%{hovertext}<extra></extra>",
        )


def _drawn(rows: Iterable[Row]) -> list[tuple[str, str]]:
    """Return the parts of a cost that occur, so that the legend names only visible parts."""
    found = list(rows)
    return [(part, key) for part, key in PARTS.items() if any(row[key] for row in found)]


def _told(name: str, part: str, row: Row, column: str) -> str:
    """Return the hover text of one part of one bar."""
    lines = [name, f"{part}: {money(row[column])} of {amount(row)}"]
    lines.append(
        f"{count(row['calls'], 'call')}; {doubt(row)}"
        if doubt(row)
        else count(row["calls"], "call")
    )
    return "<br>".join(lines)


def _beside(figure: go.Figure, ends: Sequence[tuple[float, str]]) -> None:
    """Annotate each bar at its end. All at once, because plotly copies all annotations for each one that is added."""
    shared = dict(showarrow=False, xanchor="left", xshift=4, font_color=FAINT)
    notes = [dict(shared, x=x, y=at, text=text) for at, (x, text) in enumerate(ends)]
    figure.update_layout(annotations=notes)


def _number(value: Any) -> float | None:
    """Return money as the length of a bar; None without a price, so that no bar of length 0 is drawn."""
    return None if value is None else float(value)


def _agent(row: Row) -> str:
    """Return the display name of an agent: its session, and for a sub-agent suffixes of the calls that started it."""
    _, under, path = lane_of(row).partition(" › ")
    return f"{name_of(row, NAME - 8)} › {path}" if under else name_of(row, NAME)


def _together(rows: Sequence[Row]) -> dict[str, Any]:
    """Return rows merged into one; without rows, the sum of its parts."""
    found = _summed(rows, (*PARTS.values(), *_COUNTS))
    parts = [found[column] for column in PARTS.values() if found[column] is not None]
    costs = [row["cost_usd"] for row in rows if row.get("cost_usd") is not None]
    found["cost_usd"] = sum(costs, Decimal(0)) if costs else sum(parts) if parts else None
    states = [row.get("cost_status") for row in rows if row.get("cost_usd") is not None]
    found["cost_status"] = next(
        (each for each in ("estimated", "lower_bound", "unknown_model") if each in states), "exact"
    )
    return found


def _summed(rows: Sequence[Row], columns: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for column in columns:
        known = [row[column] for row in rows if row.get(column) is not None]
        found[column] = sum(known) if known else None
    return found


def _saved(row: Row) -> str:
    saved = row.get("saved_usd")
    if saved is None:
        return "saved: no price"
    without = f"; {row['unpriced_calls']:,} unpriced" if row.get("unpriced_calls") else ""
    return f"{f'saved {money(saved)}' if saved >= 0 else f'cost {money(-saved)} more'}{without}"


def _wasted(rows: Sequence[Row]) -> dict[str, Any]:
    found = _summed(rows, ("missed_tokens", "wasted_usd", "calls", "unpriced_calls"))
    found["reason_source"] = Counter[str]()
    for row in rows:
        found["reason_source"][str(row.get("reason_source") or "")] += row["calls"] or 0
    return found


def _reason(reason: str) -> str:
    told = {"expired": "expired before the next call", "unknown": "no known reason"}
    return told.get(reason, reason.replace("_", " "))


def _waste(row: Row) -> str:
    said = {
        "provider": "the provider reported it",
        "request": "the requests differ",
        "gap": "by the time between calls",
    }
    by = [
        f"{text}: {row['reason_source'][key]:,}"
        for key, text in said.items()
        if row["reason_source"][key]
    ]
    told = f"{money(row['wasted_usd'])} on {count(row['missed_tokens'], 'token')} in {count(row['calls'], 'call')}"
    without = (
        f"{count(row['unpriced_calls'], 'call')} without a price" if row["unpriced_calls"] else ""
    )
    return "<br>".join(filter(None, (told, without, *by)))
