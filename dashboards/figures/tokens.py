"""The figure of turns: the tokens of each turn in the four billed classes, and above them the cost of each turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import groupby, pairwise
from typing import Any

import plotly.graph_objects as go

from agentobs.store.analysis.failed_steps import call_notes
from dashboards.figures.phrases import (
    Row,
    certain_money,
    count,
    empty_figure,
    lane_of,
    money,
    plain,
)
from dashboards.style import GRID, INK, RED, STEEL, TOKENS, bar, layout

MOST_TURNS = 320
"""The maximum number of bars. With four classes of tokens, costs and missing prices, the figure has fewer than 2,000
marks."""
MOST_SHADED = 60
"""The maximum number of shaded areas, which are the turns of sub-agents. Our choice."""
NAMES = {
    "input_tokens": "input",
    "cache_read_tokens": "cache read",
    "cache_write_tokens": "cache write",
    "output_tokens": "output",
}
"""Display names of the classes of tokens, in stacking order."""
FEW_BARS = 80
"""If there are at most this many bars, each bar has a mark on the cost line. Our choice."""
FEW_TURNS = 16
"""If the axis has at most this many turns, each of them has a tick. Our choice: their numbers fit below the bars."""
PLOT = 520
"""The assumed minimum width of the plot, to decide which labels fit. [pixels]"""
LETTER, LINE = 6, 14
"""The approximate width of a letter, and the height of a line, of the label of a lane. [pixels]"""


@dataclass(frozen=True, slots=True)
class _Bar:
    """The turns that are drawn as one bar: a single turn, unless there are too many."""

    first: int
    """The position of its first turn on the axis."""
    last: int
    """The position of its last turn on the axis."""
    rows: Sequence[Row]
    so_far: Decimal | None
    """The cost of all turns up to the end of this bar; None if no turn has a price."""

    @property
    def cost(self) -> Decimal | None:
        """The cost of all its turns; None if no turn has a price."""
        known = [row["cost_usd"] for row in self.rows if row["cost_usd"] is not None]
        return sum(known, Decimal(0)) if known else None

    @property
    def highest(self) -> Decimal | None:
        """The cost of its most expensive turn; None if no turn has a price."""
        return max(
            (row["cost_usd"] for row in self.rows if row["cost_usd"] is not None), default=None
        )

    @property
    def unpriced(self) -> int:
        """The number of turns that used tokens and have no price, or that have calls without a price."""
        return sum(_is_unpriced(row) for row in self.rows)

    @property
    def middle(self) -> float:
        return (self.first + self.last) / 2

    @property
    def width(self) -> int:
        return self.last - self.first + 1

    @property
    def unfinished(self) -> int:
        """The number of turns without a complete response."""
        return sum(bool(row.get("is_unfinished")) for row in self.rows)

    def tokens(self, column: str) -> float:
        """The mean number of tokens of its turns."""
        total = sum(row[column] or 0 for row in self.rows)
        return total if len(self.rows) == 1 else total / len(self.rows)


def with_unfinished(complete: Sequence[Row], unfinished: Sequence[Row]) -> list[Row]:
    """Return all turns of a session in the order of their start, with `is_unfinished` if there is no complete response.

    Args:
        complete: the rows of the query `session_turns`.
        unfinished: the rows of `internal/unfinished_turns`.
    """
    rows = [{**row, "is_unfinished": False} for row in complete]
    rows += [{**row, "is_unfinished": True} for row in unfinished]
    return sorted(rows, key=lambda row: int(row["started_ns"] or 0))


def session_turns(rows: Sequence[Row]) -> go.Figure:
    """Return stacked bars of the tokens of each turn in four classes, and a line with the cost of each turn above them.

    The turns of all lanes are sorted by their start. The turns of sub-agents are shaded. If there are more than
    `MOST_TURNS` turns, consecutive turns share a bar with the mean of their tokens and the cost of the most expensive
    one. The axis shows the number that each turn has in its lane.

    Args:
        rows: the rows of the query `session_turns`, or the rows of `with_unfinished`.
    """
    if not rows:
        return empty_figure()
    size = -(-len(rows) // MOST_TURNS)
    positions = _positions(rows)
    bars = _bars(rows, positions, size)
    figure = go.Figure(
        layout=layout(
            height=400,
            barmode="stack",
            bargap=0.15 if len(bars) < FEW_BARS else 0.0,
            legend_traceorder="normal",
            hovermode="x unified",
            hoversubplots="axis",
        )
    )
    _add_tokens(figure, bars)
    _add_money(figure, bars)
    length = max(positions[-1] - positions[0] + 1, 8)
    _shade(figure, rows, length)
    lanes = len({row["lane"] for row in rows})
    title = (
        "turns of all agents, in the order in which they started"
        if lanes > 1
        else "turns, in the order in which they started"
    )
    axis_title = f"{title}; each bar represents {size} turns" if size > 1 else title
    figure.update_xaxes(
        title_text=axis_title,
        range=[positions[0] - 0.6, positions[0] + length - 0.4],
        showgrid=False,
        tickformat=",d",
        nticks=9,
    )
    if len(rows) <= FEW_TURNS:
        names = ["?" if row["turn"] is None else f"{row['turn']:,}" for row in rows]
        figure.update_xaxes(tickmode="array", tickvals=positions, ticktext=names)
    elif positions[0] != rows[0]["turn"] or positions[-1] != rows[-1]["turn"]:
        # The positions are not the numbers of turns, and the numbers of all turns do not fit.
        figure.update_xaxes(showticklabels=False)
    most = max(float(each.highest or 0) for each in bars)
    token_title = f"tokens per turn, mean of {size}" if size > 1 else "tokens"
    money_title = f"$ per turn,<br>highest of {size}" if size > 1 else "US dollars"
    figure.update_layout(
        xaxis_anchor="y",
        yaxis=dict(title_text=token_title, domain=[0, 0.66], rangemode="tozero", nticks=6),
        yaxis2={
            **layout().yaxis.to_plotly_json(),
            **_MONEY,
            "title_text": money_title,
            "range": [0, most * 1.15 or 1],
        },
    )
    return figure


_MONEY = {
    "domain": [0.76, 1],
    "anchor": "x",
    "nticks": 3,
    "tickprefix": "$",
    "exponentformat": "none",
    "separatethousands": True,
}


def _positions(rows: Sequence[Row]) -> list[int]:
    """Return the position of each turn on the axis: its number, if all are of one lane and nearly all are present."""
    numbers = [row["turn"] for row in rows]
    is_increasing = all(
        isinstance(each, int) and isinstance(after, int) and each < after
        for each, after in pairwise([0, *numbers])
    )
    is_one_lane = len({row["lane"] for row in rows}) == 1
    if is_increasing and is_one_lane and numbers[-1] - numbers[0] < 2 * len(numbers):
        return numbers
    return list(range(1, len(rows) + 1))


def _bars(rows: Sequence[Row], positions: Sequence[int], size: int) -> list[_Bar]:
    bars: list[_Bar] = []
    total: Decimal | None = None
    for at in range(0, len(rows), size):
        bar_rows, places = rows[at : at + size], positions[at : at + size]
        added = _Bar(places[0], places[-1], bar_rows, None)
        total = added.cost if total is None else total + (added.cost or 0)
        bars.append(replace(added, so_far=total))
    return bars


def _add_tokens(figure: go.Figure, bars: Sequence[_Bar]) -> None:
    mean = " per turn" if any(len(each.rows) > 1 for each in bars) else ""
    for column, name in NAMES.items():
        bars_with_tokens = [each for each in bars if each.tokens(column)]
        if not bars_with_tokens:
            continue
        figure.add_bar(
            name=name,
            x=[each.middle for each in bars_with_tokens],
            y=[each.tokens(column) for each in bars_with_tokens],
            width=[each.width * (0.85 if len(bars) < FEW_BARS else 1) for each in bars_with_tokens],
            marker=bar(TOKENS[column]),
            hovertemplate=f"{name}: %{{y:,d}} tokens{mean}<extra></extra>",
        )


def _add_money(figure: go.Figure, bars: Sequence[_Bar]) -> None:
    figure.add_scatter(
        name="money",
        mode="lines+markers" if len(bars) <= FEW_BARS else "lines",
        x=[each.middle for each in bars],
        y=[None if each.highest is None else float(each.highest) for each in bars],
        yaxis="y2",
        line=dict(color=INK, width=1.5),
        marker=dict(color=INK, size=5),
        hovertext=[_hover_text(each) for each in bars],
        hovertemplate="%{hovertext}<extra></extra>",
    )
    unfinished = [each for each in bars if each.unfinished]
    if unfinished:
        figure.add_scatter(
            name="no complete response",
            mode="markers",
            x=[each.middle for each in unfinished],
            y=[float(each.highest or 0) for each in unfinished],
            yaxis="y2",
            marker=dict(symbol="diamond-open", color=RED, size=10, line=dict(width=2, color=RED)),
            cliponaxis=False,
            hovertext=[
                f"{count(each.unfinished, 'turn')} without a complete response"
                for each in unfinished
            ],
            hovertemplate="%{hovertext}<extra></extra>",
        )
    without = [each for each in bars if each.unpriced]
    if without:
        figure.add_scatter(
            name="without a price",
            mode="markers",
            x=[each.middle for each in without],
            y=[float(each.highest or 0) for each in without],
            yaxis="y2",
            marker=dict(symbol="x", color=INK, size=8),
            cliponaxis=False,
            hovertext=[
                _hover_text(each) if each.cost is None else _unpriced_text(each) for each in without
            ],
            hovertemplate="%{hovertext}<extra></extra>",
        )


def _hover_text(each: _Bar) -> str:
    """Return the hover text of a bar: its turns, their outcome, and their cost."""
    if len(each.rows) > 1:
        lanes = list(dict.fromkeys(plain(lane_of(row), 24) for row in each.rows))
        more = f" and {len(lanes) - 2} more lanes" if len(lanes) > 2 else ""
        lines = [f"{len(each.rows)} turns of {', '.join(lanes[:2])}{more}"]
    else:
        [row] = each.rows
        turn = "" if row["turn"] is None else f", turn {row['turn']}"
        lines = [f"{plain(lane_of(row), 40)}{turn}", plain(row["model"] or "unknown model", 40)]
        if row["stop_reason"] is not None:
            word = "response" if row.get("is_unfinished") else "stop reason"
            lines.append(f"{word} {plain(row['stop_reason'], 30)}")
        if notes := call_notes(row["tool_errors"], row.get("denied_calls") or 0):
            lines.append(f"of its tool calls, {notes}")
    cost = money(None) if each.cost is None else certain_money(each.cost, each.rows)
    if len(each.rows) > 1 and each.highest is not None:
        highest = max(each.rows, key=lambda row: row["cost_usd"] or 0)
        cost = f"{cost} in total, at most {certain_money(each.highest, [highest])} in one turn"
    so_far = "" if each.so_far is None else f", {money(each.so_far)} so far"
    return "<br>".join([*lines, f"{cost}{so_far}"])


def _unpriced_text(each: _Bar) -> str:
    if each.unpriced == 1:
        return "1 turn is missing from the total, or only partly included, because it has no price"
    return f"{each.unpriced:,} turns are missing from the total, or only partly included, because they have no price"


def _is_unpriced(row: Row) -> bool:
    has_used = any(row[column] for column in NAMES)
    return bool(row["unpriced_calls"]) or (row["cost_usd"] is None and has_used)


def _shade(figure: go.Figure, rows: Sequence[Row], length: int) -> None:
    """Shade the turns of sub-agents, and label each area that is wide enough, upwards if it is narrow.

    `length` is the length of the axis in turns.
    """
    at = 1
    shaded: list[tuple[int, int, str]] = []
    for lane, each in groupby(rows, lambda row: str(row["lane"] or "")):
        group = list(each)
        if "/" in lane:
            shaded.append((at, at + len(group), lane_of(group[0])))
        at += len(group)
    # If there are too many areas, keep the longest ones.
    shaded.sort(key=lambda each: each[0] - each[1])
    shown = shaded[:MOST_SHADED]
    # Add all at once, because plotly searches all existing shapes each time one is added.
    figure.update_layout(
        shapes=[_shaded_area(begin, end) for begin, end, _ in shown],
        annotations=list(_lane_labels(sorted(shown), PLOT / length)),
    )


def _shaded_area(begin: int, end: int) -> dict[str, Any]:
    return {
        "type": "rect",
        "x0": begin - 0.5,
        "x1": end - 0.5,
        "yref": "paper",
        "y0": 0,
        "y1": 1,
        "fillcolor": GRID,
        "opacity": 0.5,
        "layer": "below",
        "line": {"width": 1, "color": STEEL},
    }


def _lane_labels(areas: Sequence[tuple[int, int, str]], pixels: float) -> Iterator[dict[str, Any]]:
    """Yield the label of each area that is wide enough. `pixels` is the width of a turn."""
    for begin, end, agent in areas:
        text, width = plain(agent, 24), (end - begin) * pixels
        if width < LINE:
            continue
        yield {
            "x": (begin + end - 1) / 2,
            "yref": "paper",
            "y": 0.7,
            "yanchor": "middle",
            "text": text,
            "textangle": 0 if width >= len(text) * LETTER else -90,
            "showarrow": False,
            "font": {"size": 10, "color": INK},
        }
