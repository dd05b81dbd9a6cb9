"""Figures of costs: by model, day, agent and session, the savings by caching, and the cost of cache misses.

Costs are shown with their certainty: sums that are not exact have the prefix `at least` or `about`, and items without a
price are marked.
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
    empty_figure,
    filter_rows,
    lane_of,
    money,
    name_of,
    named_rows,
    plain,
    uncertainty_note,
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
"""The parts of a cost in stacking order, with the columns that contain them."""
MOST_AGENTS = 24
"""The maximum number of names with their own bar; one more bar shows the rest. Our choice."""
NAME_LENGTH = 32
"""The maximum number of characters of a name next to a bar; the hover text shows more. Our choice."""
NOTE_SHARE = 0.0145
"""The width of a character of a note next to a bar, as a fraction of the plot width: 6 of 415 pixels, for a figure of
half the width of a page."""
_COUNTS = ("calls", "unpriced_calls", "lower_bound_calls", "estimated_calls")


def cost_by_model(rows: Sequence[Row]) -> go.Figure:
    """Return stacked bars of the cost of each model by part, the most expensive on top.

    Args:
        rows: the rows of the query `cost_by_model`; money in US dollars, None if a price is unknown.
    """
    figure = _cost_bars(rows, [str(row["model"] or "an unnamed model") for row in rows], "models")
    filter_rows(figure, "model", [row["model"] for row in rows[:MOST_AGENTS]])
    return figure


def cost_by_agent(rows: Sequence[Row]) -> go.Figure:
    """Return stacked bars of the cost of each agent by part, the most expensive on top.

    Args:
        rows: the rows of the query `cost_by_agent`.
    """
    return _cost_bars(rows, [_agent_name(row) for row in rows], "agents")


def cost_by_name(rows: Sequence[Row]) -> go.Figure:
    """Return stacked bars of the cost of sessions by name, including sub-agents; the most expensive name is on top.

    Args:
        rows: the rows of the query `cost_by_name`.
    """
    figure = _cost_bars(rows, [name_of(row, NAME_LENGTH) for row in rows], "names")
    filter_rows(figure, "q", [row["name"] for row in rows[:MOST_AGENTS]])
    return figure


def cost_by_day(rows: Sequence[Row]) -> go.Figure:
    """Return stacked bars of the cost of each day (UTC) by part, the first day on the left.

    Days without a call are gaps. A long period is grouped by week, month or year. Bars that are not exact have a mark
    above them.

    Args:
        rows: the rows of the query `cost_by_day`.
    """
    dated_rows = [(day, row) for row in rows if (day := day_of(row["day"])) is not None]
    axis = calendar(day for day, _ in dated_rows)
    if axis is None:
        return empty_figure()
    grouped: dict[Any, list[Row]] = {}
    for day, row in sorted(dated_rows, key=lambda each: each[0]):
        grouped.setdefault(axis.start(day), []).append(row)
    bars = {start: _merged(each) for start, each in grouped.items()}
    figure = go.Figure(layout=layout(height=320, barmode="stack", legend_traceorder="normal"))
    for part, column in _visible_parts(bars.values()):
        _add_days(figure, axis, bars, part, column)
    _mark_inexact(figure, axis, bars)
    draw_days(figure, axis)
    figure.update_layout(meta={"days": axis.periods(bars)})
    figure.update_yaxes(title_text="US dollars", **_DOLLARS)
    return figure


def cache_efficiency(rows: Sequence[Row]) -> go.Figure:
    """Return bars that show where the input tokens of sessions came from, and the savings by caching.

    Args:
        rows: the rows of the query `cache_by_name`, `cache_efficiency` or `cache_by_session`.
    """
    columns = ("cache_read_tokens", "cache_write_tokens", "input_tokens")
    rest = rows[MOST_AGENTS:]
    shown = [
        *rows[:MOST_AGENTS],
        *([_sums(rest, (*columns, "saved_usd", "calls", "unpriced_calls"))] if rest else []),
    ]
    if not shown:
        return empty_figure()
    names = [plain(name_of(row, NAME_LENGTH), NAME_LENGTH) for row in rows[:MOST_AGENTS]]
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
        (100, _savings_text(row)) if total else (0, "no input")
        for row, total in zip(shown, totals, strict=True)
    ]
    _annotate_ends(figure, notes)
    named_rows(figure, names)
    filter_rows(figure, "q", [row.get("name") for row in rows[:MOST_AGENTS]])
    note_share = min(max(len(text) for _, text in notes) * NOTE_SHARE, 0.55)
    figure.update_xaxes(
        title_text="share of input tokens, %", range=[0, 100 / (1 - note_share)], tickvals=_SHARES
    )
    return figure


def cache_waste(rows: Sequence[Row]) -> go.Figure:
    """Return bars of the cost of tokens that were billed again after cache misses, by reason, largest on top.

    Args:
        rows: the rows of the query `cache_waste`.
    """
    if not rows:
        return empty_figure("no call was billed again for tokens that were already cached")
    reasons: dict[str, list[Row]] = {}
    for row in rows:
        reasons.setdefault(str(row["reason"] or "unknown"), []).append(row)
    summed = {reason: _merged_waste(found) for reason, found in reasons.items()}
    has_price = any(row["wasted_usd"] is not None for row in summed.values())
    measure = "wasted_usd" if has_price else "missed_tokens"
    order = sorted(summed, key=lambda reason: (-(summed[reason][measure] or 0), reason))
    shown = [
        (plain(miss_reason_text(each), NAME_LENGTH), summed[each]) for each in order[:MOST_AGENTS]
    ]
    if rest := order[MOST_AGENTS:]:
        shown.append(
            (f"{len(rest):,} more", _merged_waste([r for each in rest for r in reasons[each]]))
        )
    figure = go.Figure(layout=layout(showlegend=False))
    figure.add_bar(
        orientation="h",
        name="wasted",
        y=list(range(len(shown))),
        x=[_bar_length(row[measure]) for _, row in shown],
        marker=bar(Mark(RED, "/")),
        hovertext=[f"{name}<br>{_waste_text(row)}" for name, row in shown],
        hovertemplate="%{hovertext}<extra></extra>",
    )
    most = max(float(row[measure] or 0) for _, row in shown)
    ends = []
    for _, row in shown:
        prefix = "at least " if row["unpriced_calls"] and row["wasted_usd"] is not None else ""
        text = f"{prefix}{money(row['wasted_usd'], [row])} · {count(row['missed_tokens'], 'token')}"
        ends.append((float(row[measure] or 0), text))
    _annotate_ends(figure, ends)
    named_rows(figure, [name for name, _ in shown], above=8)
    title = "estimated extra cost over cache reads, US dollars" if has_price else "tokens"
    figure.update_xaxes(
        title_text=title, range=[0, most * 1.9 or 1], **(_DOLLARS if has_price else {})
    )
    return figure


_SOURCES = {
    "cache_read_tokens": "read from the cache",
    "cache_write_tokens": "written to the cache",
    "input_tokens": "uncached input",
}
_SHARES = [0, 25, 50, 75, 100]
_DOLLARS: Mapping[str, Any] = {
    "tickprefix": "$",
    "exponentformat": "none",
    "separatethousands": True,
    "rangemode": "tozero",
    "nticks": 6,
}
"""The settings of an axis of US dollars. Small amounts are also in dollars, without SI prefixes."""
_UNCERTAINTIES = (
    ("unpriced_calls", "calls without a price", "x"),
    ("lower_bound_calls", "at least", "triangle-up"),
    ("estimated_calls", "estimated", "diamond-open"),
)


def _cost_bars(rows: Sequence[Row], names: Sequence[str], plural: str) -> go.Figure:
    """Return a stacked bar for each row, with its name next to it and the sum at its end."""
    bars, rest = [_merged([row]) for row in rows[:MOST_AGENTS]], rows[MOST_AGENTS:]
    if not bars:
        return empty_figure()
    labels = [plain(name, NAME_LENGTH) for name in names[: len(bars)]]
    hover_names = [plain(name) for name in names[: len(bars)]]
    if rest:
        bars.append(_merged(rest))
        labels.append(f"{len(rest):,} more")
        hover_names.append(f"{len(rest):,} more {plural}")
    figure = go.Figure(layout=layout(barmode="stack", legend_traceorder="normal"))
    for part, column in _visible_parts(bars):
        figure.add_bar(
            orientation="h",
            name=part,
            y=list(range(len(bars))),
            x=[_bar_length(row[column]) for row in bars],
            marker=bar(PARTS_OF_COST[column]),
            hovertext=[
                _hover_text(name, part, row, column)
                for name, row in zip(hover_names, bars, strict=True)
            ],
            hovertemplate="%{hovertext}<extra></extra>",
        )
    _annotate_ends(figure, [(float(row["cost_usd"] or 0), amount(row)) for row in bars])
    named_rows(figure, labels)
    most = max(float(row["cost_usd"] or 0) for row in bars)
    figure.update_xaxes(title_text="US dollars", **_DOLLARS)
    # Leave space for the notes at the ends of the bars.
    figure.update_xaxes(range=[0, most * 1.35 or 1])
    return figure


def _add_days(
    figure: go.Figure, axis: Calendar, bars: Mapping[Any, Row], part: str, column: str
) -> None:
    figure.add_bar(
        name=part,
        x=[axis.middle(start) for start in bars],
        y=[_bar_length(row[column]) for row in bars.values()],
        width=axis.width_ms,
        marker=bar(PARTS_OF_COST[column]),
        hovertext=[_hover_text(axis.name(start), part, row, column) for start, row in bars.items()],
        hovertemplate="%{hovertext}<extra></extra>",
    )


def _mark_inexact(figure: go.Figure, axis: Calendar, bars: Mapping[Any, Row]) -> None:
    """Draw a mark above each bar that is not exact. The mark shows the most serious reason."""
    most = max(float(row["cost_usd"] or 0) for row in bars.values()) or 1.0
    marked = {
        start: next((key for key, _, _ in _UNCERTAINTIES if row[key]), None)
        for start, row in bars.items()
    }
    for key, text, symbol in _UNCERTAINTIES:
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
                f"{axis.name(start)}<br>{amount(bars[start])}<br>{uncertainty_note(bars[start])}"
                for start in starts
            ],
            hovertemplate="%{hovertext}<extra></extra>",
        )


def _visible_parts(rows: Iterable[Row]) -> list[tuple[str, str]]:
    """Return the parts of a cost that occur in the rows, so that the legend contains only visible parts."""
    known_rows = list(rows)
    return [(part, key) for part, key in PARTS.items() if any(row[key] for row in known_rows)]


def _hover_text(name: str, part: str, row: Row, column: str) -> str:
    """Return the hover text of a part of a bar."""
    lines = [name, f"{part}: {money(row[column])} of {amount(row)}"]
    lines.append(
        f"{count(row['calls'], 'call')}; {uncertainty_note(row)}"
        if uncertainty_note(row)
        else count(row["calls"], "call")
    )
    return "<br>".join(lines)


def _annotate_ends(figure: go.Figure, ends: Sequence[tuple[float, str]]) -> None:
    """Annotate each bar at its end.

    All annotations are set at once, because plotly copies all existing annotations each time one is added.
    """
    common = dict(showarrow=False, xanchor="left", xshift=4, font_color=FAINT)
    notes = [dict(common, x=x, y=at, text=text) for at, (x, text) in enumerate(ends)]
    figure.update_layout(annotations=notes)


def _bar_length(value: Any) -> float | None:
    """Return money as the length of a bar; None if it is unknown, so that no bar of length 0 is drawn."""
    return None if value is None else float(value)


def _agent_name(row: Row) -> str:
    """Return the display name of an agent: its session, and for a sub-agent also its name."""
    if "/" not in str(row.get("lane") or ""):
        return name_of(row, NAME_LENGTH)
    agent = lane_of(row)
    return f"{name_of(row, max(NAME_LENGTH - len(agent) - 3, 12))} › {agent}"


def _merged(rows: Sequence[Row]) -> dict[str, Any]:
    """Return rows merged into one. If no row has a total cost, it is the sum of the parts."""
    merged = _sums(rows, (*PARTS.values(), *_COUNTS))
    parts = [merged[column] for column in PARTS.values() if merged[column] is not None]
    costs = [row["cost_usd"] for row in rows if row.get("cost_usd") is not None]
    merged["cost_usd"] = sum(costs, Decimal(0)) if costs else sum(parts) if parts else None
    states = [row.get("cost_status") for row in rows if row.get("cost_usd") is not None]
    merged["cost_status"] = next(
        (each for each in ("estimated", "lower_bound", "unknown_model") if each in states), "exact"
    )
    return merged


def _sums(rows: Sequence[Row], columns: Sequence[str]) -> dict[str, Any]:
    sums: dict[str, Any] = {}
    for column in columns:
        known = [row[column] for row in rows if row.get(column) is not None]
        sums[column] = sum(known) if known else None
    return sums


def _savings_text(row: Row) -> str:
    saved = row.get("saved_usd")
    if saved is None:
        return "savings unknown (no price)"
    unpriced = f"; {row['unpriced_calls']:,} unpriced" if row.get("unpriced_calls") else ""
    return f"{f'saved {money(saved)}' if saved >= 0 else f'caching cost {money(-saved)} extra'}{unpriced}"


def _merged_waste(rows: Sequence[Row]) -> dict[str, Any]:
    found = _sums(rows, ("missed_tokens", "wasted_usd", "calls", "unpriced_calls"))
    found["reason_source"] = Counter[str]()
    for row in rows:
        found["reason_source"][str(row.get("reason_source") or "")] += row["calls"] or 0
    return found


def miss_reason_text(reason: str) -> str:
    """Return the reason of cache misses in words."""
    texts = {
        "compaction": "after a compaction",
        "expired": "expired before the next call",
        "unknown": "no known reason",
    }
    return texts.get(reason, reason.replace("_", " "))


def _waste_text(row: Row) -> str:
    sources = {
        "provider": "reported by the provider",
        "request": "inferred from changed requests",
        "event": "inferred from compactions",
        "gap": "inferred from the time between calls",
    }
    source_counts = [
        f"{text}: {row['reason_source'][key]:,}"
        for key, text in sources.items()
        if row["reason_source"][key]
    ]
    summary = f"{money(row['wasted_usd'])} on {count(row['missed_tokens'], 'token')} in {count(row['calls'], 'call')}"
    unpriced = (
        f"{count(row['unpriced_calls'], 'call')} without a price" if row["unpriced_calls"] else ""
    )
    return "<br>".join(filter(None, (summary, unpriced, *source_counts)))
