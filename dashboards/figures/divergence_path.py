"""The path of a replay: how far it matched the recording, where it diverged, and which recorded requests were not made.

The figure is drawn from the output of `agentobs replay --json`. Without content it shows kinds, numbers, and the
positions of differences. A position contains only keys that the Messages API defines, because the keys of tool inputs
are content.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import plotly.graph_objects as go

from agentobs.provider.registry import field_names
from dashboards.figures.phrases import Row, count, empty_figure, plain
from dashboards.style import BLUE, FAINT, INK, RED, SILVER, STEEL, Mark, bar, layout

MOST_BEFORE = 10
"""The maximum number of matched requests that are all drawn. If there are more, the first two and the last six are
drawn, with the number of omitted requests between them.
"""
MOST_AFTER = 6
"""The maximum number of drawn requests that were recorded but not made; the number of the others is shown."""
MOST_LANES = 8
"""The maximum number of other lanes that are drawn. Our choice."""
MOST_PLACES = 3
"""The maximum number of differences that are listed. Our choice."""
CUT = 200
"""The maximum number of characters of a text that contains content. Our choice."""
KINDS: Final = {
    "content": "a request that differs from the recording",
    "missing": "a recorded request that was not made",
    "extra": "an additional request",
    "order": "a later request, made too early",
    "timing": "a request at a different time than in the recording",
    "tool": "a tool call that differs from the recording",
    "world": "an exchange of the agent loop that differs from the recording",
    "outcome": "a session end that differs from the recording",
    "result": "a result that differs from the recording",
    "network": "a connection that was not recorded",
    "files": "files at the end that differ from the recording",
}
"""Descriptions of the kinds of divergences."""
NATURES: Final = {
    "whitespace": "only whitespace differs",
    "redaction": "only redactions differ",
    "element order": "same elements, different order",
    "normalizer gap": "a value that changes with each run",
    "number": "only a number differs",
    "schema": "a tool's schema",
    "timing": "only the time differs",
}
"""Descriptions of the nature that all differences of a divergence share."""
_INNER = frozenset(("input", "properties", "metadata", "(json inside)"))
"""The API does not define the keys below these keys."""
_UNIT = 44
"""The height of a line in pixels. Our choice."""


@dataclass(frozen=True, slots=True)
class _Path:
    """The positions of the requests of a lane; if there are many, a gap represents some of them."""

    matched: tuple[int, ...]
    """The numbers of the matched requests that are drawn."""
    omitted: int
    """The number of matched requests that are left out, after the second one."""
    diverging: int
    """The number of the request at which the replay diverges."""
    unmade: tuple[int, ...]
    """The numbers of the drawn requests that were recorded but not made."""
    more_unmade: int
    """The number of further recorded requests that were not made."""

    def at(self, diverging: int) -> float:
        """Return the position of a request; the start of the lane is at 0."""
        if diverging in self.matched:
            return self.matched.index(diverging) + 1 + (self.omitted > 0 and diverging > 2)
        return len(self.matched) + 1 + (self.omitted > 0) + (diverging - self.diverging)


def divergence(report: Mapping[str, Any], *, content: bool = False) -> go.Figure:
    """Return the figure of a replay that diverged from its recording.

    Args:
        report: the parsed output of `agentobs replay --json`.
        content: whether hover texts contain the recorded and the new content.
    """
    number, recorded = _positive(report.get("number")), _positive(report.get("of"))
    if not report.get("kind") or number < 1:
        return empty_figure("the replay did not diverge from its recording")
    path = _path(number, recorded)
    figure = go.Figure(layout=layout(legend_traceorder="normal", barmode="overlay"))
    _add_matched(figure, path, report)
    has_recorded = recorded >= number
    if has_recorded:
        _add_recorded(figure, path, report, content)
    _add_replayed(figure, path, report, content)
    last = path.at(number) + len(path.unmade) + (path.more_unmade > 0)
    lines = _replayed_lines(report)
    _write_sides(figure, path, report, lines, last, has_recorded=has_recorded)
    bottom = -1.5 - 0.34 * len(lines)
    bottom = _add_lanes(figure, report, last, bottom)
    figure.update_xaxes(visible=False, range=[-0.4, last + 0.6])
    figure.update_yaxes(range=[bottom, 2.1], showgrid=False, zeroline=False, ticklabelstandoff=4)
    figure.update_layout(height=round(_UNIT * (2.1 - bottom)) + 48)
    return figure


def _path(number: int, recorded: int) -> _Path:
    if number - 1 > MOST_BEFORE:
        matched, omitted = (1, 2, *range(number - 6, number)), number - 1 - 8
    else:
        matched, omitted = tuple(range(1, number)), 0
    unmade = tuple(range(number + 1, min(recorded, number + MOST_AFTER) + 1))
    return _Path(matched, omitted, number, unmade, max(0, recorded - number - MOST_AFTER))


def _add_matched(figure: go.Figure, path: _Path, report: Row) -> None:
    """Draw the path up to the divergence, which is the same in the recording and the replay."""
    x: list[float | None] = [0, *(path.at(each) for each in path.matched)]
    hover_texts = ["the start", *(f"request {each:,}: as recorded" for each in path.matched)]
    lane = plain(report.get("lane") or "main", 30)
    _write(figure, -0.1, 0.35, f"lane {lane}", anchor="left")
    _write_numbers(figure, path, path.matched, -0.33)
    if path.omitted:
        x[3:3] = [None]
        hover_texts[3:3] = [""]
        for begin, end in ((path.at(2), path.at(path.matched[2])),):
            _line(figure, begin, 0, end, 0, BLUE, dash="dot")
            _write(figure, (begin + end) / 2, 0.35, f"{path.omitted:,} more")
    figure.add_scatter(
        name="replayed as recorded",
        mode="lines+markers",
        x=x,
        y=[None if each is None else 0 for each in x],
        line=dict(color=BLUE, width=3),
        marker=dict(color=BLUE, size=10, symbol=["circle-open", *["circle"] * (len(x) - 1)]),
        hovertext=hover_texts,
        hovertemplate="%{hovertext}<extra></extra>",
    )


def _add_recorded(figure: go.Figure, path: _Path, report: Row, content: bool) -> None:
    """Draw the rest of the recorded path, which the replay did not take."""
    numbers = [path.diverging, *path.unmade]
    x = [path.at(each) for each in numbers]
    _line(figure, x[0] - 1, 0, x[0], 1, STEEL, dash="dash")
    _write_numbers(figure, path, numbers, 0.67)
    hover_texts = [f"request {each:,}: recorded, but not made in the replay" for each in numbers]
    hover_texts[0] = f"request {path.diverging:,}, as recorded"
    if content:
        hover_texts[0] += _difference_texts(report, "expected")
        following = _list(_dict(report.get("left")).get("following"))
        for at, text in enumerate(following[: len(hover_texts) - 1], 1):
            hover_texts[at] += f"<br>{plain(text, CUT)}"
    figure.add_scatter(
        name="recorded, but not made in the replay",
        mode="lines+markers",
        x=x,
        y=[1] * len(x),
        line=dict(color=STEEL, width=2, dash="dash"),
        marker=dict(color=STEEL, size=10, symbol="circle-open"),
        hovertext=hover_texts,
        hovertemplate="%{hovertext}<extra></extra>",
    )
    if path.more_unmade:
        _line(figure, x[-1], 1, x[-1] + 1, 1, STEEL, dash="dot")
        _write(figure, x[-1] + 0.5, 1.33, f"{path.more_unmade:,} more")


def _add_replayed(figure: go.Figure, path: _Path, report: Row, content: bool) -> None:
    """Draw the diverging request of the replay."""
    x = path.at(path.diverging)
    _line(figure, x - 1, 0, x, -1, RED)
    hover_text = f"{_location(report)}<br>{_description(report)}"
    if content:
        hover_text += (
            f"<br>{plain(report.get('summary') or '', CUT)}{_difference_texts(report, 'actual')}"
        )
        if cause := _dict(report.get("cause")).get("text"):
            hover_text += f"<br>why: {plain(cause, CUT)}"
    figure.add_scatter(
        name="replayed differently",
        mode="markers",
        x=[x],
        y=[-1],
        marker=dict(color=RED, size=13, symbol="x"),
        hovertext=[hover_text],
        hovertemplate="%{hovertext}<extra></extra>",
    )


def _write_sides(
    figure: go.Figure,
    path: _Path,
    report: Row,
    lines: Sequence[str],
    last: float,
    *,
    has_recorded: bool,
) -> None:
    """Label the recorded path with the requests that were not made, and the replayed path with the differences."""
    x = path.at(path.diverging)
    # Write on the side of the fork that has more space.
    is_late = x > (last + 0.2) / 2
    anchor, at = ("right", x + 0.3) if is_late else ("left", x - 0.3)
    recorded_text = (
        _unmade_text(report) if has_recorded else "the recording ends before this request"
    )
    _write(figure, at, 1.6, recorded_text, anchor=anchor, color=INK)
    _write(figure, at, -1.35, "<br>".join(lines), anchor=anchor, color=INK, top=True)


def _replayed_lines(report: Row) -> list[str]:
    """Return the lines that describe the diverging request."""
    lines = [_location(report), _description(report), *_difference_lines(report)]
    cause = _dict(report.get("cause"))
    if kind := cause.get("kind"):
        tool = f" of {plain(cause['tool'], 24)}" if cause.get("tool") else ""
        lines.append(f"probable cause: {plain(kind, 24).replace('_', ' ')}{tool}")
    return lines


def _add_lanes(figure: go.Figure, report: Row, last: float, low: float) -> float:
    """Draw how many requests of each other lane matched, below `low`. Return the lower end of the drawing."""
    lanes = [each for each in _list(report.get("lanes")) if isinstance(each, Mapping)]
    others = [each for each in lanes if each.get("lane") != report.get("lane")]
    shown = others[:MOST_LANES]
    y = [low - 0.4 - 0.6 * at for at in range(len(shown))]
    names = [plain(each.get("lane") or "unknown lane", 24) for each in shown]
    matched = [_positive(each.get("asked")) for each in shown]
    recorded = [
        max(_positive(each.get("of")), part, 1) for each, part in zip(shown, matched, strict=True)
    ]
    hover_texts = [
        f"{name}: {a:,} of {count(b, 'request')} match the recording"
        for name, a, b in zip(names, matched, recorded, strict=True)
    ]
    full_length = (last + 0.6) * 0.6
    for name, mark, lengths in (
        ("in another lane", Mark(SILVER), [full_length] * len(shown)),
        (
            "as recorded",
            Mark(BLUE),
            [full_length * a / b for a, b in zip(matched, recorded, strict=True)],
        ),
    ):
        if shown:
            figure.add_bar(
                orientation="h",
                name=name,
                showlegend=False,
                x=lengths,
                y=y,
                width=0.3,
                marker=bar(mark),
                hovertext=hover_texts,
                hovertemplate="%{hovertext}<extra></extra>",
            )
    for at, a, b in zip(y, matched, recorded, strict=True):
        _write(
            figure,
            full_length + 0.01 * last,
            at,
            f"{a:,} of {b:,} match the recording",
            anchor="left",
        )
    low -= 0.6 * len(shown) + 0.2 * bool(shown)
    if omitted := len(others) - len(shown):
        _write(figure, 0, low - 0.1, f"and {count(omitted, 'more lane')}", anchor="left")
        low -= 0.5
    figure.update_yaxes(
        tickmode="array",
        tickvals=[1, 0, -1, *y],
        ticktext=["recorded", "both", "replayed", *names],
    )
    return low


def _location(report: Row) -> str:
    turn = report.get("turn")
    attempt = _positive(report.get("attempt"))
    number, of = _positive(report.get("number")), _positive(report.get("of"))
    parts = [
        f"request {number:,} of {of:,}"
        if number <= of
        else f"request {number:,}, after the last recorded request"
    ]
    parts += [f"turn {turn:,}"] if isinstance(turn, int) else []
    parts += [f"attempt {attempt:,}"] if attempt > 1 else []
    return ", ".join(parts)


def _description(report: Row) -> str:
    kind = str(report.get("kind"))
    nature = str(report.get("nature") or "")
    nature_text = NATURES.get(nature, plain(nature, 24))
    return f"{KINDS.get(kind, plain(kind, 24))}{f': {nature_text}' if nature_text else ''}"


def _unmade_text(report: Row) -> str:
    """Return a description of the recorded exchanges that were not made after the divergence."""
    unmade = _dict(report.get("left"))
    kinds = (("requests", "request"), ("tools", "tool call"), ("answers", "exchange"))
    counts = [count(number, word) for key, word in kinds if (number := _positive(unmade.get(key)))]
    return (
        f"not made after this point:<br>{', '.join(counts)}"
        if counts
        else "nothing was recorded after this point"
    )


def _difference_lines(report: Row) -> list[str]:
    differences = [each for each in _list(report.get("differences")) if isinstance(each, Mapping)]
    more = max(0, len(differences) - MOST_PLACES) + _positive(report.get("more"))
    lines = [
        f"{plain(each.get('change') or 'changed', 12)} {_difference_path(each)}"
        for each in differences[:MOST_PLACES]
    ]
    return [*dict.fromkeys(lines), *([f"and {count(more, 'more difference')}"] if more else [])]


def _difference_path(difference: Row) -> str:
    """Return the position of a difference, up to the first key that the API does not define.

    There is no dollar sign at the start, because plotly renders text between two dollar signs as a formula.
    """
    if str(difference.get("path")).startswith("request."):
        return plain(difference["path"], 60)
    path = ""
    for key in _list(difference.get("keys")):
        if isinstance(key, int):
            path += f"[{key}]"
        elif key in field_names() or key == "(json inside)":
            path += f".{key}" if key in field_names() else ""
        else:
            return f"{path}.…".removeprefix(".")
        if key in _INNER:
            return f"{path}.…".removeprefix(".")
    return plain(path.removeprefix(".") or "the request", 60)


def _difference_texts(report: Row, side: str) -> str:
    """Return the values of the first differences with their full paths. `side` selects recorded or new values."""
    differences = [each for each in _list(report.get("differences")) if isinstance(each, Mapping)]
    return "".join(
        f"<br>{plain(each.get('path') or '', CUT)}: {plain(each.get(side), CUT)}"
        for each in differences[:MOST_PLACES]
    )


def _line(
    figure: go.Figure, x0: float, y0: float, x1: float, y1: float, color: str, dash: str = "solid"
) -> None:
    figure.add_shape(
        type="line",
        x0=x0,
        y0=y0,
        x1=x1,
        y1=y1,
        line=dict(color=color, width=2.5, dash=dash),
        layer="below",
    )


def _write(
    figure: go.Figure,
    x: float,
    y: float,
    text: str,
    *,
    anchor: str = "center",
    color: str = FAINT,
    top: bool = False,
) -> None:
    figure.add_annotation(
        x=x,
        y=y,
        text=text,
        showarrow=False,
        xanchor=anchor,
        yanchor="top" if top else "middle",
        align="left" if anchor == "center" else anchor,
        font=dict(color=color, size=11),
    )


def _write_numbers(figure: go.Figure, path: _Path, numbers: Sequence[int], y: float) -> None:
    """Write the number of each request below its mark."""
    for each in numbers:
        _write(figure, path.at(each), y, f"{each:,}")


def _positive(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _dict(value: Any) -> Row:
    return value if isinstance(value, Mapping) else {}
