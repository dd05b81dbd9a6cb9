"""Figures of time: the wall time of interactions by category, how long approvals took, and the time to first token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import plotly.graph_objects as go

from agentobs.records import words
from agentobs.records.display import seconds, share
from agentobs.store.analysis.wall_time import PARTS, UNSEEN
from dashboards.figures.elapsed_time import HOUR, MINUTE, SECOND
from dashboards.figures.phrases import (
    Row,
    count,
    empty_figure,
    filter_rows,
    lane_of,
    named_rows,
    plain,
)
from dashboards.style import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    PARTS_OF_TIME,
    PURPLE,
    RED,
    SKY,
    STEEL,
    Mark,
    bar,
    layout,
)

NAMES: Final = words.PARTS_OF_TIME
"""Display names of the categories of time."""
MOST_BARS = 40
"""The maximum number of bars; if there are more interactions, consecutive ones share a bar. Our choice."""
MOST_MODELS = 30
"""The maximum number of models that are drawn. Our choice."""
MOST_RESOLVERS = 5
"""The maximum number of resolvers that are distinguished, most frequent first. Our choice."""
MOST_SINGLE_TICKS = 5
"""The highest number of approval requests up to which the axis has a tick for each number. Our choice."""
BUCKETS: Final = {
    "under_1s": "under 1 s",
    "under_10s": "1 to 10 s",
    "under_1min": "10 to 60 s",
    "under_10min": "1 to 10 min",
    "longer": "longer",
    "unanswered": "never answered",
}
"""The columns that count approval requests by wait time, with their labels."""
_RESOLVERS: Final = {
    "person": Mark(PURPLE, "/"),
    "classifier": Mark(BLUE),
    "hook": Mark(GREEN, "."),
    "unattended": Mark(RED, "x"),
}
_OTHERS: Final = (Mark(ORANGE), Mark(SKY, "-"), Mark(STEEL, "|"), Mark(GREEN, "+"), Mark(BLUE, "x"))


def time_split(rows: Sequence[Row]) -> go.Figure:
    """Return a bar for each interaction, stacked by category of wall time; each nanosecond counts once.

    Args:
        rows: the fields of each `agentobs.store.analysis.wall_time.Split`, in the order of their starts.
    """
    known = [row for row in rows if row.get("wall_ns") is not None]
    if not known:
        return empty_figure()
    size = -(-len(known) // MOST_BARS)
    groups = [known[at : at + size] for at in range(0, len(known), size)]
    sums = [
        {part: sum(row[f"{part}_ns"] or 0 for row in group) for part in PARTS} for group in groups
    ]
    walls = [sum(row["wall_ns"] for row in group) for group in groups]
    unit, word = _unit(max(walls))
    names = [_bar_label(at * size, group) for at, group in enumerate(groups)]
    display_names = dict(NAMES)
    if any("person" in UNSEEN.get(row.get("timing_source", "spans"), ()) for row in known):
        display_names["tool"] = f"{NAMES['tool']}, {words.UNSEEN_WAITS}"
    figure = go.Figure(
        [
            go.Bar(
                name=display_names[part],
                orientation="h",
                y=list(range(len(groups))),
                x=[spent[part] / unit for spent in sums],
                marker=bar(PARTS_OF_TIME[part]),
                customdata=[
                    f"interaction {name}<br>{display_names[part]}: {seconds(spent[part])} of {seconds(wall)}"
                    f"{_share_text(spent[part], wall)}"
                    for name, spent, wall in zip(names, sums, walls, strict=True)
                ],
                hovertemplate="%{customdata}<extra></extra>",
            )
            for part in PARTS
            if any(spent[part] for spent in sums)
        ],
        layout=layout(barmode="stack", margin=dict(l=8, r=16, t=36, b=8)),
    )
    figure.update_layout(legend_traceorder="normal")
    named_rows(figure, names, above=48, below=56)
    figure.update_xaxes(title_text=word, rangemode="tozero")
    figure.update_yaxes(title_text="interaction")
    return figure


def blocked_on_user(rows: Sequence[Row]) -> go.Figure:
    """Return a histogram of how long approval requests waited for an answer, by resolver: a person or a substitute.

    Args:
        rows: the rows of the query `waits_for_people`.
    """
    counted: dict[str, Counter[str]] = {}
    subjects: dict[tuple[str, str], Counter[str]] = {}
    for row in rows:
        resolver = str(row["resolver"] or "unknown")
        for bucket in BUCKETS:
            number = row[bucket] or 0
            counted.setdefault(resolver, Counter())[bucket] += number
            subjects.setdefault((resolver, bucket), Counter())[plain(row["about"], 30)] += number
    order = sorted(counted, key=lambda name: (-counted[name].total(), name))
    if not any(counted[name].total() for name in order):
        return empty_figure()
    for name in order[MOST_RESOLVERS:]:
        for bucket, number in counted[name].items():
            counted.setdefault("", Counter())[bucket] += number
            subjects.setdefault(("", bucket), Counter()).update(subjects[name, bucket])
    shown = [*order[:MOST_RESOLVERS], *([""] if "" in counted else [])]
    others = iter(_OTHERS * 2)
    figure = go.Figure(
        layout=layout(
            barmode="stack", height=300, margin=dict(l=8, r=16, t=36, b=8), showlegend=True
        )
    )
    for name in shown:
        display_name = plain(name, 30) if name else f"{len(order) - MOST_RESOLVERS:,} others"
        figure.add_trace(
            go.Bar(
                name=display_name,
                x=list(BUCKETS.values()),
                y=[counted[name][bucket] or None for bucket in BUCKETS],
                marker=bar(_RESOLVERS.get(name) or next(others)),
                customdata=[
                    _hover_text(display_name, subjects[name, bucket]) for bucket in BUCKETS
                ],
                hovertemplate="%{customdata}<extra></extra>",
            )
        )
    figure.update_xaxes(
        type="category",
        title_text="time until the answer",
        categoryarray=list(BUCKETS.values()),
        range=[-0.5, 5.5],
    )
    highest = max(sum(counted[name][bucket] for name in shown) for bucket in BUCKETS)
    # Requests are whole numbers; without a distance, a short axis would have ticks between them.
    distance = {"tick0": 0, "dtick": 1} if highest <= MOST_SINGLE_TICKS else {}
    figure.update_yaxes(
        title_text="approval requests", rangemode="tozero", tickformat=",d", **distance
    )
    return figure


def first_token(rows: Sequence[Row]) -> go.Figure:
    """Return the time to first token of each model: median, 95th and 99th percentile, in the order of the rows.

    Args:
        rows: the rows of the query `first_token_by_model`.
    """
    known = [row for row in rows if row["p50_ns"] is not None]
    shown = known[:MOST_MODELS]
    if not shown:
        return empty_figure()
    slowest = max(row[name] or 0 for row in shown for name in ("p50_ns", "p95_ns", "p99_ns"))
    unit, word = (SECOND, "seconds") if slowest >= 2 * SECOND else (1_000_000, "ms")
    names = [plain(row["model"], 32) for row in shown]
    if len(known) > len(shown):
        names.append(f"and {len(known) - len(shown):,} more")
    places = list(range(len(shown)))

    def hover_texts(column: str, text: str) -> list[str]:
        return [
            f"{plain(row['model'])}<br>{text} of {count(row['calls'], 'response')} "
            f"started within {seconds(row[column] or 0)}"
            for row in shown
        ]

    def at(column: str) -> list[float | None]:
        return [None if row[column] is None else row[column] / unit for row in shown]

    figure = go.Figure(
        go.Bar(
            name="p50 (median)", orientation="h", y=places, x=at("p50_ns"), marker=bar(Mark(BLUE)),
            customdata=hover_texts("p50_ns", "50%"), hovertemplate="%{customdata}<extra></extra>",
        ),
        layout=layout(margin=dict(l=8, r=16, t=36, b=8)),
    )  # fmt: skip
    for column, name, symbol, color in (
        ("p95_ns", "p95", "diamond", ORANGE),
        ("p99_ns", "p99", "line-ns", INK),
    ):
        figure.add_trace(
            go.Scatter(
                name=name, mode="markers", y=places, x=at(column),
                marker=dict(symbol=symbol, size=11, color=color, line=dict(color=color, width=2)),
                customdata=hover_texts(column, f"{name[1:]}%"),
                hovertemplate="%{customdata}<extra></extra>",
            )
        )  # fmt: skip
    named_rows(figure, names, above=48, below=56)
    filter_rows(figure, "model", [row["model"] for row in shown])
    figure.update_xaxes(title_text=f"time to first chunk, {word}", rangemode="tozero")
    return figure


def _unit(ns: int) -> tuple[int, str]:
    """Return a readable unit for an axis up to this time: its length in nanoseconds, and its name."""
    if ns >= 3 * HOUR:
        return HOUR, "hours"
    if ns >= 3 * MINUTE:
        return MINUTE, "minutes"
    return (SECOND, "seconds") if ns >= SECOND // 2 else (1_000_000, "ms")


def _share_text(part: int, total: int) -> str:
    return f" ({plain(share(part, total))})" if total else ""


def _bar_label(first_index: int, group: Sequence[Row]) -> str:
    """Return the label of a bar: the number of its interaction, or of its first and last interaction."""
    if len(group) > 1:
        return f"{first_index + 1:,} to {first_index + len(group):,}"
    [row] = group
    remarks = [] if row.get("lane") in (None, "main") else [lane_of(row)]
    remarks += [] if row.get("has_ended", True) else ["did not end"]
    suffix = f" ({plain(', '.join(remarks))})" if remarks else ""
    return f"{first_index + 1:,}{suffix}"


def _hover_text(resolver: str, subjects: Counter[str]) -> str:
    """Return the hover text of a bar: what approval was requested for, and how often."""
    lines_by_subject = [f"{name}: {times:,}" for name, times in subjects.most_common(6) if times]
    more = len([times for times in subjects.values() if times]) - len(lines_by_subject)
    lines = [
        f"{count(subjects.total(), 'approval request')}, answered by {resolver}",
        *lines_by_subject,
    ]
    return "<br>".join([*lines, f"and {count(more, 'other')}"] if more > 0 else lines)
