"""Failure signatures over time: in how many sessions of each day each was found, compared with all sessions.

Each signature has a row of small bars, to its own scale: a session can have several, so stacked bars would show more
failures than there were, and ten colors cannot be distinguished.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date

import plotly.graph_objects as go

from dashboards.figures.days import Calendar, calendar, day_of, draw_days
from dashboards.figures.phrases import Row, count, nothing, plain
from dashboards.style import FAINT, GRID, ORANGE, RED, SILVER, Mark, bar, layout

MOST_SIGNATURES = 12
"""How many signatures have their own row; the last row shows the rest. Our choice."""
_LINE = 44
"""The height of a row in pixels; that of all sessions is twice as high. Our choice."""
_HIGH = 0.78
"""The fraction of a row that its highest bar takes."""


@dataclass(slots=True)
class _Line:
    """A row with its name."""

    name: str
    sessions: dict[date, int] = field(default_factory=dict)
    """The number of sessions, by the first day of each period of the axis."""

    @property
    def peak(self) -> int:
        return max(self.sessions.values(), default=0)


def failure_signatures(rows: Sequence[Row], days: Sequence[Row] = ()) -> go.Figure:
    """Return small bars for each failure signature: in how many sessions of each day (UTC) it was found.

    Args:
        rows: the rows of the query `signatures_by_day`.
        days: the rows of the query `sessions_by_day`, drawn on top; left out if empty.
    """
    axis = calendar(day for row in (*rows, *days) if (day := day_of(row["day"])) is not None)
    if axis is None:
        return nothing()
    lines = _lines(rows, axis)
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
            text="no failure signature fired",
            xref="paper",
            x=0.5,
            y=-top - 0.5,
            showarrow=False,
            font_color=FAINT,
        )
    low = min(bases) if lines else -top - 1
    draw_days(figure, axis)
    figure.update_layout(
        height=round(_LINE * -low) + 90,
        margin_r=136,
        # A grid line for each baseline, and no scale: each row has its own, at its end.
        yaxis=dict(
            tickmode="array",
            tickvals=[base + (1 if base == -top else _HIGH / 2) for base in bases],
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


def _lines(rows: Sequence[Row], axis: Calendar) -> list[_Line]:
    """Return a row for each signature, the one with the most sessions first."""
    found: dict[str, dict[date, int]] = {}
    for row in rows:
        day = day_of(row["day"])
        if day is None:
            continue
        counts = found.setdefault(str(row["signature"] or "unknown"), {})
        start = axis.start(day)
        counts[start] = counts.get(start, 0) + (row["sessions"] or 0)
    order = sorted(found, key=lambda name: (-sum(found[name].values()), name))
    most = MOST_SIGNATURES if len(order) <= MOST_SIGNATURES else MOST_SIGNATURES - 1
    lines = [_Line(plain(name, 28).replace("_", " "), found[name]) for name in order[:most]]
    if rest := order[most:]:
        lines.append(_Line(f"{len(rest):,} more"))
        for name in rest:
            for start, number in found[name].items():
                lines[-1].sessions[start] = lines[-1].sessions.get(start, 0) + number
    return lines


def _draw(figure: go.Figure, line: _Line, axis: Calendar, base: float, *, is_first: bool) -> None:
    said = {
        start: f"{axis.name(start)}<br>{line.name}: in {count(number, 'session')}"
        for start, number in line.sessions.items()
    }
    _bars(figure, "sessions in which it fired", Mark(ORANGE), axis, line, base, said, is_first)
    _note(
        figure, base + _HIGH / 2, _peak(line, axis), count(sum(line.sessions.values()), "session")
    )


def _draw_sessions(figure: go.Figure, days: Sequence[Row], axis: Calendar) -> None:
    """Draw the number of sessions, with the failed ones below."""
    failed, others = _Line("failed"), _Line("others")
    for row in days:
        day = day_of(row["day"])
        if day is None:
            continue
        start = axis.start(day)
        bad = row["failed"] or 0
        failed.sessions[start] = failed.sessions.get(start, 0) + bad
        others.sessions[start] = others.sessions.get(start, 0) + (row["sessions"] or 0) - bad
    whole = {start: number + failed.sessions[start] for start, number in others.sessions.items()}
    said = {
        start: f"{axis.name(start)}<br>{failed.sessions[start]:,} of {count(number, 'session')} failed"
        for start, number in whole.items()
    }
    peak = max(whole.values(), default=0)
    bases = {start: -2 + _share(number, peak, 2) for start, number in failed.sessions.items()}
    _bars(figure, "sessions that failed", Mark(RED, "/"), axis, failed, -2, said, True, peak, 2)
    _bars(figure, "other sessions", Mark(SILVER), axis, others, bases, said, True, peak, 2)
    total = sum(whole.values())
    told = (f"{sum(failed.sessions.values()):,} failed", f"of {total:,}")
    _note(figure, -1, _peak(_Line("all", whole), axis), *told)


def _bars(
    figure: go.Figure,
    name: str,
    mark: Mark,
    axis: Calendar,
    line: _Line,
    base: float | Mapping[date, float],
    said: Mapping[date, str],
    has_legend: bool,
    peak: int = 0,
    lines: int = 1,
) -> None:
    """Draw a row of bars on `base`: the highest, of `peak` sessions, takes `_HIGH` of `lines`."""
    starts = [start for start in sorted(line.sessions) if line.sessions[start]]
    figure.add_bar(
        name=name,
        legendgroup=name,
        showlegend=has_legend,
        x=[axis.middle(start) for start in starts],
        y=[_share(line.sessions[start], peak or line.peak, lines) for start in starts],
        base=[base[start] if isinstance(base, Mapping) else base for start in starts],
        width=axis.width_ms,
        customdata=[line.sessions[start] for start in starts],
        marker=bar(mark),
        hovertext=[said[start] for start in starts],
        hovertemplate="%{hovertext}<extra></extra>",
    )


def _share(number: int, peak: int, lines: int) -> float:
    return (lines - 1 + _HIGH) * number / peak if peak else 0.0


def _peak(line: _Line, axis: Calendar) -> str:
    return f"at most {line.peak:,} a {axis.unit}"


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
