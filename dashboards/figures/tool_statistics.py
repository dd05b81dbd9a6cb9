"""Figures of tools: their latency and error rate, with confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence

import plotly.graph_objects as go

from agentobs.records.display import seconds
from dashboards.figures.phrases import Row, count, empty_figure, filter_rows, named_rows, plain
from dashboards.style import BLUE, FAINT, GRID, ORANGE, PURPLE, RED, STEEL, layout

MOST_TOOLS = 40
"""The maximum number of tools that are drawn. Our choice."""
NAME_LENGTH = 24
"""The maximum number of characters of a tool's name next to its row. Our choice."""
Z = 1.959963984540054
"""The 0.975 quantile of the normal distribution, for 95% confidence intervals."""
_SHORTEST_NS = 1_000
"""Shorter times are drawn as if they were this long, because a logarithmic scale has no zero."""
_PERCENTILES = (
    ("p50_ns", "p50 (median)", BLUE, "circle"),
    ("p90_ns", "p90", ORANGE, "diamond"),
    ("p99_ns", "p99", PURPLE, "square"),
)
_TICKS = (
    (1e-3, "1 µs"), (1e-2, "10 µs"), (0.1, "100 µs"), (1, "1 ms"), (10, "10 ms"), (100, "100 ms"), (1e3, "1 s"),
    (1e4, "10 s"), (6e4, "1 min"), (6e5, "10 min"), (3.6e6, "1 h"), (3.6e7, "10 h"), (3.6e8, "100 h"),
)  # fmt: skip
"""The labeled values of a logarithmic time axis, in milliseconds."""


def tool_latency(rows: Sequence[Row]) -> go.Figure:
    """Return the median, 90th and 99th percentile of each tool's latency, the slowest on top.

    Tools without any call of known duration are at the bottom, with a note.

    Args:
        rows: the rows of the query `tool_latency`.
    """
    timed = [row for row in rows if row["p50_ns"] is not None]
    timed.sort(key=lambda row: (-(row["p90_ns"] or row["p50_ns"]), str(row["name"])))
    untimed = [row for row in rows if row["p50_ns"] is None]
    shown = [*timed, *untimed][:MOST_TOOLS]
    if not shown:
        return empty_figure()
    figure = go.Figure(layout=layout(legend_traceorder="normal"))
    _connect(figure, shown)
    for column, name, color, symbol in _PERCENTILES:
        known_rows = [(at, row) for at, row in enumerate(shown) if row[column] is not None]
        figure.add_scatter(
            name=name,
            mode="markers",
            x=[_ms(row[column]) for _, row in known_rows],
            y=[at for at, _ in known_rows],
            marker=dict(color=color, symbol=symbol, size=9),
            hovertext=[_hover_text(row, column, name) for _, row in known_rows],
            hovertemplate="%{hovertext}<extra></extra>",
        )
    names = [_name(row) for row in shown]
    if rest := len(rows) - len(shown):
        names.append(f"and {count(rest, 'more tool')}")
    named_rows(figure, names)
    filter_rows(figure, "q", [row["name"] for row in shown])
    low, high = _scale(figure, timed)
    for at, row in enumerate(shown):
        if row["p50_ns"] is None:
            # Use paper coordinates: on a logarithmic axis, some renderers expect an exponent, and others a value.
            _note(figure, 0.02, at, "no execution time recorded", xref="paper")
    figure.update_layout(xaxis_range=[math.log10(low) - 0.1, math.log10(high) + 0.1])
    return figure


def tool_errors(rows: Sequence[Row]) -> go.Figure:
    """Return the error rate of each tool with its confidence interval, the worst on top.

    The interval is Wilson's 95% score interval (E. B. Wilson: Probable inference, the law of succession, and
    statistical inference. Journal of the American Statistical Association 22, 1927), which is also valid for few calls:
    for example, after 1 failure in 1 call, the interval starts at about 0.2. Tools are ordered by the lower bound of
    the interval, so that certain failures come first.

    Args:
        rows: the rows of the query `tool_latency`.
    """
    rated = [(row, *wilson(row["errors"] or 0, row["calls"])) for row in rows if row["calls"]]
    rated.sort(key=lambda each: (-each[1], -(each[0]["errors"] or 0), str(each[0]["name"])))
    shown = rated[:MOST_TOOLS]
    if not shown:
        return empty_figure()
    shares = [100 * (row["errors"] or 0) / row["calls"] for row, _, _ in shown]
    names = [plain(row["name"] or "unnamed", NAME_LENGTH) for row, _, _ in shown]
    figure = go.Figure(layout=layout(showlegend=False))
    figure.add_scatter(
        name="failed calls",
        mode="markers",
        x=shares,
        y=list(range(len(shown))),
        marker=dict(
            color=[RED if row["errors"] else STEEL for row, _, _ in shown],
            symbol=["diamond" if row["errors"] else "circle-open" for row, _, _ in shown],
            size=9,
        ),
        error_x=dict(
            type="data",
            symmetric=False,
            array=[100 * high - share for (_, _, high), share in zip(shown, shares, strict=True)],
            arrayminus=[
                share - 100 * low for (_, low, _), share in zip(shown, shares, strict=True)
            ],
            color=STEEL,
            thickness=1.5,
            width=4,
        ),
        hovertext=[
            f"{name}: {row['errors'] or 0:,} of {count(row['calls'], 'call')} failed ({share:.1f}%)"
            f"<br>95% confidence interval: {100 * low:.1f}% to {100 * high:.1f}%"
            for (row, low, high), name, share in zip(shown, names, shares, strict=True)
        ],
        hovertemplate="%{hovertext}<extra></extra>",
    )
    for at, (row, _, high) in enumerate(shown):
        _note(figure, 100 * high, at, f"{row['errors'] or 0:,} of {row['calls']:,}")
    if rest := len(rated) - len(shown):
        names.append(f"and {count(rest, 'more tool')}")
    named_rows(figure, names, above=8)
    filter_rows(figure, "q", [row["name"] for row, _, _ in shown])
    most = max(100 * high for _, _, high in shown)
    figure.update_xaxes(
        title_text="failed calls, % (lines: 95% confidence interval)",
        range=[-most * 0.02, most * 1.4],
        dtick=next(
            step for step in (0.1, 0.2, 0.5, 1, 2, 5, 10, 25) if most / step <= 5 or step == 25
        ),
        tick0=0,
    )
    return figure


def wilson(failed: int, calls: int) -> tuple[float, float]:
    """Return the ends of Wilson's 95% score interval, each as a fraction.

    Args:
        failed: the number of failed calls.
        calls: the number of calls, at least 1.
    """
    share = min(failed / calls, 1.0)
    weight = 1 + Z * Z / calls
    middle = (share + Z * Z / (2 * calls)) / weight
    half = Z / weight * math.sqrt(share * (1 - share) / calls + Z * Z / (4 * calls * calls))
    return max(0.0, min(middle - half, share)), min(1.0, max(middle + half, share))


def _connect(figure: go.Figure, shown: Sequence[Row]) -> None:
    """Draw a line from the lowest to the highest percentile of each tool."""
    x: list[float | None] = []
    y: list[int | None] = []
    for at, row in enumerate(shown):
        known = [row[column] for column, *_ in _PERCENTILES if row[column] is not None]
        if len(known) > 1:
            x += [_ms(min(known)), _ms(max(known)), None]
            y += [at, at, None]
    figure.add_scatter(
        mode="lines", x=x, y=y, line=dict(color=GRID, width=4), hoverinfo="skip", showlegend=False
    )


def _scale(figure: go.Figure, timed: Sequence[Row]) -> tuple[float, float]:
    """Make the axis logarithmic with labeled times; return its ends in milliseconds."""
    known_ms = [_ms(row[key]) for row in timed for key, *_ in _PERCENTILES if row[key] is not None]
    shortest, longest = min(known_ms, default=1.0), max(known_ms, default=1e3)
    axis_start = max((at for at, _ in _TICKS if at <= shortest), default=_TICKS[0][0])
    axis_end = min(
        (at for at, _ in _TICKS if at >= longest and at > axis_start),
        default=max(longest, _TICKS[-1][0]),
    )
    shown_ticks = [each for each in _TICKS if axis_start <= each[0] <= axis_end]
    # At most 7 labels fit into 700 pixels.
    shown_ticks = shown_ticks[:: -(-len(shown_ticks) // 7)]
    figure.update_xaxes(
        type="log",
        title_text="time (logarithmic)",
        tickmode="array",
        tickvals=[at for at, _ in shown_ticks],
        ticktext=[name for _, name in shown_ticks],
    )
    return axis_start, axis_end


def _ms(ns: int) -> float:
    return max(ns, _SHORTEST_NS) / 1e6


def _name(row: Row) -> str:
    return f"{plain(row['name'] or 'unnamed', NAME_LENGTH)} ({count(row['calls'], 'call')})"


def _hover_text(row: Row, column: str, name: str) -> str:
    timed = row["timed_calls"] or 0
    lines = [f"{plain(row['name'] or 'unnamed')}: {name}: {duration_text(row[column])} or less"]
    if row["max_ns"] is not None:
        lines.append(f"the slowest took {duration_text(row['max_ns'])}")
    remark = (
        "; with fewer than 100, p99 is the maximum" if column == "p99_ns" and timed < 100 else ""
    )
    lines.append(f"execution time known for {timed:,} of {count(row['calls'], 'call')}{remark}")
    return "<br>".join(lines)


def duration_text(ns: int) -> str:
    """Return the duration of a call as text. It can be negative if the clock was set back."""
    return seconds(ns) if ns >= _SHORTEST_NS else "less than 1 µs"


def _note(figure: go.Figure, x: float, y: int, text: str, xref: str = "x") -> None:
    figure.add_annotation(
        x=x,
        xref=xref,
        y=y,
        text=text,
        showarrow=False,
        xanchor="left",
        xshift=6,
        font=dict(color=FAINT, size=11),
    )
