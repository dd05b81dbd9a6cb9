"""Figures of tools: their latency and error rate, with confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence

import plotly.graph_objects as go

from agentobs.records.display import seconds
from dashboards.figures.phrases import Row, count, named_rows, nothing, plain
from dashboards.style import BLUE, FAINT, GRID, ORANGE, PURPLE, RED, STEEL, layout

MOST_TOOLS = 40
"""How many tools have their own row. Our choice."""
NAME = 24
"""How many characters of a tool's name are next to its row, followed by its number of calls. Our choice."""
Z = 1.959963984540054
"""The 0.975 quantile of the normal distribution, for 95 % intervals."""
_SHORTEST_NS = 1_000
"""Shorter times are drawn like this one: a logarithmic scale has no zero."""
_PERCENTILES = (
    ("p50_ns", "p50 (median)", BLUE, "circle"),
    ("p90_ns", "p90 (9 of 10)", ORANGE, "diamond"),
    ("p99_ns", "p99 (99 of 100)", PURPLE, "square"),
)
_TICKS = (
    (1e-3, "1 µs"), (1e-2, "10 µs"), (0.1, "100 µs"), (1, "1 ms"), (10, "10 ms"), (100, "100 ms"), (1e3, "1 s"),
    (1e4, "10 s"), (6e4, "1 min"), (6e5, "10 min"), (3.6e6, "1 h"), (3.6e7, "10 h"), (3.6e8, "100 h"),
)  # fmt: skip
"""The labeled values of a scale of milliseconds."""


def tool_latency(rows: Sequence[Row]) -> go.Figure:
    """Return the median, 90th and 99th percentile of each tool's latency, the slowest on top.

    Tools without a call of known duration are at the bottom, with a note.

    Args:
        rows: the rows of the query `tool_latency`.
    """
    timed = [row for row in rows if row["p50_ns"] is not None]
    timed.sort(key=lambda row: (-(row["p90_ns"] or row["p50_ns"]), str(row["name"])))
    untimed = [row for row in rows if row["p50_ns"] is None]
    shown = [*timed, *untimed][:MOST_TOOLS]
    if not shown:
        return nothing()
    figure = go.Figure(layout=layout(legend_traceorder="normal"))
    _connect(figure, shown)
    for column, name, color, symbol in _PERCENTILES:
        drawn = [(at, row) for at, row in enumerate(shown) if row[column] is not None]
        figure.add_scatter(
            name=name,
            mode="markers",
            x=[_ms(row[column]) for _, row in drawn],
            y=[at for at, _ in drawn],
            marker=dict(color=color, symbol=symbol, size=9),
            hovertext=[_took(row, column, name) for _, row in drawn],
            hovertemplate="%{hovertext}<extra></extra>",
        )
    names = [_name(row) for row in shown]
    if rest := len(rows) - len(shown):
        names.append(f"and {count(rest, 'tool')} more")
    named_rows(figure, names)
    low, high = _scale(figure, timed)
    for at, row in enumerate(shown):
        if row["p50_ns"] is None:
            # The position of an annotation on a logarithmic scale is an exponent in some renderers, and a value in
            # others.
            _note(figure, 0.02, at, "execution time never recorded", xref="paper")
    figure.update_layout(xaxis_range=[math.log10(low) - 0.1, math.log10(high) + 0.1])
    return figure


def tool_errors(rows: Sequence[Row]) -> go.Figure:
    """Return the error rate of each tool with its confidence interval, the worst on top.

    The interval is Wilson's score interval of 95 % (E. B. Wilson: Probable inference, the law of succession, and
    statistical inference. Journal of the American Statistical Association 22, 1927), which is valid for few calls:
    after 1 failure in 1 call the rate may be one in five. The order is that of the lower end: certain failures first.

    Args:
        rows: the rows of the query `tool_latency`.
    """
    known = [(row, *wilson(row["errors"] or 0, row["calls"])) for row in rows if row["calls"]]
    known.sort(key=lambda each: (-each[1], -(each[0]["errors"] or 0), str(each[0]["name"])))
    shown = known[:MOST_TOOLS]
    if not shown:
        return nothing()
    shares = [100 * (row["errors"] or 0) / row["calls"] for row, _, _ in shown]
    names = [plain(row["name"] or "unnamed", NAME) for row, _, _ in shown]
    figure = go.Figure(layout=layout(showlegend=False))
    figure.add_scatter(
        name="calls that failed",
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
            f"<br>95% interval: {100 * low:.1f} and {100 * high:.1f}%"
            for (row, low, high), name, share in zip(shown, names, shares, strict=True)
        ],
        hovertemplate="%{hovertext}<extra></extra>",
    )
    for at, (row, _, high) in enumerate(shown):
        _note(figure, 100 * high, at, f"{row['errors'] or 0:,} of {row['calls']:,}")
    if rest := len(known) - len(shown):
        names.append(f"and {count(rest, 'tool')} more")
    named_rows(figure, names, above=8)
    most = max(100 * high for _, _, high in shown)
    figure.update_xaxes(
        title_text="calls that failed, %; lines: 95% interval",
        range=[-most * 0.02, most * 1.4],
        dtick=next(
            step for step in (0.1, 0.2, 0.5, 1, 2, 5, 10, 25) if most / step <= 5 or step == 25
        ),
        tick0=0,
    )
    return figure


def wilson(failed: int, calls: int) -> tuple[float, float]:
    """Return the ends of Wilson's score interval, each as a fraction.

    Args:
        failed: how many calls failed.
        calls: the number of calls, at least 1.
    """
    share = min(failed / calls, 1.0)
    weight = 1 + Z * Z / calls
    middle = (share + Z * Z / (2 * calls)) / weight
    half = Z / weight * math.sqrt(share * (1 - share) / calls + Z * Z / (4 * calls * calls))
    return max(0.0, min(middle - half, share)), min(1.0, max(middle + half, share))


def _connect(figure: go.Figure, shown: Sequence[Row]) -> None:
    """Draw a line from the first to the last mark of each tool."""
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
    drawn = [_ms(row[key]) for row in timed for key, *_ in _PERCENTILES if row[key] is not None]
    least, most = min(drawn, default=1.0), max(drawn, default=1e3)
    low = max((at for at, _ in _TICKS if at <= least), default=_TICKS[0][0])
    high = min(
        (at for at, _ in _TICKS if at >= most and at > low), default=max(most, _TICKS[-1][0])
    )
    named = [each for each in _TICKS if low <= each[0] <= high]
    # So that the labels fit 700 pixels.
    named = named[:: -(-len(named) // 7)]
    figure.update_xaxes(
        type="log",
        title_text="time (logarithmic)",
        tickmode="array",
        tickvals=[at for at, _ in named],
        ticktext=[name for _, name in named],
    )
    return low, high


def _ms(ns: int) -> float:
    return max(ns, _SHORTEST_NS) / 1e6


def _name(row: Row) -> str:
    return f"{plain(row['name'] or 'unnamed', NAME)} ({count(row['calls'], 'call')})"


def _took(row: Row, column: str, name: str) -> str:
    timed = row["timed_calls"] or 0
    lines = [f"{plain(row['name'] or 'unnamed')}: {name}: {took(row[column])} or less"]
    if row["max_ns"] is not None:
        lines.append(f"the slowest took {took(row['max_ns'])}")
    calls = count(timed, "call")
    few = (
        ", too few to distinguish this from the maximum"
        if column == "p99_ns" and timed < 100
        else ""
    )
    lines.append(f"{calls} of {row['calls'] or 0:,} seen running{few}")
    return "<br>".join(lines)


def took(ns: int) -> str:
    """Return the duration of a call; a clock that was set back can make it negative."""
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
