"""Failure signatures over time: the number of sessions per day in which each was found, next to all sessions.

Each signature has a row of small bars with its own scale. Stacked bars would show more failures than there were,
because a session can have several signatures; and ten colors are hard to distinguish.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date

import plotly.graph_objects as go

from dashboards.figures.days import Calendar, calendar, day_of, draw_days
from dashboards.figures.phrases import Row, count, empty_figure, plain
from dashboards.style import FAINT, GRID, ORANGE, RED, SILVER, Mark, bar, layout

MOST_SIGNATURES = 12
"""The maximum number of rows for signatures; if there are more signatures, the last row shows the rest. Our choice."""
_ROW_HEIGHT = 44
"""The height of a row in pixels; the row of all sessions is twice as high. Our choice."""
_BAR_SHARE = 0.78
"""The height of the highest bar of a row, as a fraction of the row."""


@dataclass(slots=True)
class _Row:
    """A row of bars."""

    name: str
    sessions: dict[date, int] = field(default_factory=dict)
    """The number of sessions, by the first day of each period of the axis."""
    filters: Mapping[str, str] = field(default_factory=dict)
    """The parameters with which the list of sessions shows these sessions, in addition to the days."""

    @property
    def peak(self) -> int:
        return max(self.sessions.values(), default=0)


def failure_signatures(rows: Sequence[Row], days: Sequence[Row] = ()) -> go.Figure:
    """Return a row of bars for each failure signature: the number of sessions per day (UTC) in which it was found.

    Args:
        rows: the rows of the query `signatures_by_day`.
        days: the rows of the query `sessions_by_day`, for the row of all sessions on top. If there are none, this row
            is left out.
    """
    axis = calendar(day for row in (*rows, *days) if (day := day_of(row["day"])) is not None)
    if axis is None:
        return empty_figure()
    lines = _signature_rows(rows, axis)
    figure = go.Figure(layout=layout(barmode="overlay", bargap=0))
    top = 2.0 if days else 0.0
    if days:
        _draw_sessions(figure, days, axis)
    for at, line in enumerate(lines):
        _draw(figure, line, axis, -top - at - 1, is_first=at == 0)
    names = [line.name for line in lines]
    bases = [-top - at - 1 for at in range(len(lines))]
    if days:
        names, bases = ["all sessions", *names], [-top, *bases]
    if not lines:
        figure.add_annotation(
            text="no failure signatures found",
            xref="paper",
            x=0.5,
            y=-top - 0.5,
            showarrow=False,
            font_color=FAINT,
        )
    low = min(bases) if lines else -top - 1
    draw_days(figure, axis)
    starts = {axis.start(day) for row in (*rows, *days) if (day := day_of(row["day"])) is not None}
    figure.update_layout(meta={"days": axis.periods(sorted(starts))})
    figure.update_layout(
        height=round(_ROW_HEIGHT * -low) + 90,
        margin_r=136,
        # The axis has names instead of values: each row has its own scale, and its peak is written at its end.
        yaxis=dict(
            tickmode="array",
            tickvals=[base + (1 if base == -top else _BAR_SHARE / 2) for base in bases],
            ticktext=names,
            range=[low, 0],
            showgrid=False,
            zeroline=False,
            fixedrange=True,
            ticklabelstandoff=4,
        ),
    )
    for base in bases:
        figure.add_shape(
            type="line", xref="paper", x0=0, x1=1, y0=base, y1=base, line=dict(color=GRID, width=1)
        )
    return figure


def _signature_rows(rows: Sequence[Row], axis: Calendar) -> list[_Row]:
    """Return a row for each signature, the signature with the most sessions first."""
    sessions: dict[str, dict[date, int]] = {}
    for row in rows:
        day = day_of(row["day"])
        if day is None:
            continue
        counts = sessions.setdefault(str(row["signature"] or "unknown"), {})
        start = axis.start(day)
        counts[start] = counts.get(start, 0) + (row["sessions"] or 0)
    order = sorted(sessions, key=lambda name: (-sum(sessions[name].values()), name))
    most = MOST_SIGNATURES if len(order) <= MOST_SIGNATURES else MOST_SIGNATURES - 1
    signature_rows = [
        _Row(plain(name, 28).replace("_", " "), sessions[name], {"signature": name})
        for name in order[:most]
    ]
    if rest := order[most:]:
        signature_rows.append(_Row(f"{len(rest):,} more"))
        for name in rest:
            for start, number in sessions[name].items():
                signature_rows[-1].sessions[start] = (
                    signature_rows[-1].sessions.get(start, 0) + number
                )
    return signature_rows


def _draw(figure: go.Figure, row: _Row, axis: Calendar, base: float, *, is_first: bool) -> None:
    hover_texts = {
        start: f"{axis.name(start)}<br>{row.name}: in {count(number, 'session')}"
        for start, number in row.sessions.items()
    }
    _bars(
        figure,
        "sessions in which it was found",
        Mark(ORANGE),
        axis,
        row,
        base,
        hover_texts,
        is_first,
    )
    _note(
        figure,
        base + _BAR_SHARE / 2,
        _peak(row, axis),
        count(sum(row.sessions.values()), "session"),
    )


def _draw_sessions(figure: go.Figure, days: Sequence[Row], axis: Calendar) -> None:
    """Draw stacked bars of the numbers of failed and other sessions."""
    failed_row, other_row = _Row("failed", filters={"sort": "-attention"}), _Row("others")
    for row in days:
        day = day_of(row["day"])
        if day is None:
            continue
        start = axis.start(day)
        failed_sessions = row["failed"] or 0
        failed_row.sessions[start] = failed_row.sessions.get(start, 0) + failed_sessions
        other_row.sessions[start] = (
            other_row.sessions.get(start, 0) + (row["sessions"] or 0) - failed_sessions
        )
    all_sessions = {
        start: number + failed_row.sessions[start] for start, number in other_row.sessions.items()
    }
    hover_texts = {
        start: f"{axis.name(start)}<br>{failed_row.sessions[start]:,} of {count(number, 'session')} failed"
        for start, number in all_sessions.items()
    }
    peak = max(all_sessions.values(), default=0)
    bases = {start: -2 + _share(number, peak, 2) for start, number in failed_row.sessions.items()}
    _bars(
        figure,
        "sessions that failed",
        Mark(RED, "/"),
        axis,
        failed_row,
        -2,
        hover_texts,
        True,
        peak,
        2,
    )
    _bars(
        figure, "other sessions", Mark(SILVER), axis, other_row, bases, hover_texts, True, peak, 2
    )
    total = sum(all_sessions.values())
    totals_text = (f"{sum(failed_row.sessions.values()):,} failed", f"of {total:,}")
    _note(figure, -1, _peak(_Row("all", all_sessions), axis), *totals_text)


def _bars(
    figure: go.Figure,
    name: str,
    mark: Mark,
    axis: Calendar,
    row: _Row,
    base: float | Mapping[date, float],
    hover_texts: Mapping[date, str],
    has_legend: bool,
    peak: int = 0,
    row_heights: int = 1,
) -> None:
    """Draw a row of bars on `base`. A bar of `peak` sessions takes `_BAR_SHARE` of the topmost row height."""
    starts = [start for start in sorted(row.sessions) if row.sessions[start]]
    figure.add_bar(
        name=name,
        legendgroup=name,
        showlegend=has_legend,
        x=[axis.middle(start) for start in starts],
        y=[_share(row.sessions[start], peak or row.peak, row_heights) for start in starts],
        base=[base[start] if isinstance(base, Mapping) else base for start in starts],
        width=axis.width_ms,
        meta=dict(row.filters),
        customdata=[row.sessions[start] for start in starts],
        marker=bar(mark),
        hovertext=[hover_texts[start] for start in starts],
        hovertemplate="%{hovertext}<extra></extra>",
    )


def _share(number: int, peak: int, row_heights: int) -> float:
    return (row_heights - 1 + _BAR_SHARE) * number / peak if peak else 0.0


def _peak(row: _Row, axis: Calendar) -> str:
    return f"peak: {row.peak:,} per {axis.unit}"


def _note(figure: go.Figure, y: float, *texts: str) -> None:
    """Annotate the end of a row."""
    figure.add_annotation(
        xref="paper",
        x=1,
        y=y,
        text="<br>".join(texts),
        showarrow=False,
        xanchor="left",
        xshift=6,
        align="left",
        font=dict(color=FAINT, size=11),
    )
