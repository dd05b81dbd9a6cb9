"""The path of a replay: how far it matched the recorded path, where they diverge, and what was not requested
afterwards.

It is drawn from the output of `agentobs replay --json`. Without content it shows kinds, numbers and positions. Of a
position, only keys defined by the Messages API are shown, because the keys of tool inputs are content.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import plotly.graph_objects as go

from agentobs.provider.registry import field_names
from dashboards.figures.phrases import Row, count, nothing, plain
from dashboards.style import BLUE, FAINT, INK, RED, SILVER, STEEL, Mark, bar, layout

MOST_BEFORE = 10
"""How many matched requests are drawn individually; of more, the first two, the number left out, and the last six."""
MOST_AFTER = 6
"""How many unrequested requests are drawn; of more, also their number."""
MOST_LANES = 8
"""How many other lanes are drawn. Our choice."""
MOST_PLACES = 3
"""How many positions of differences are listed. Our choice."""
CUT = 200
"""How many characters of a text are shown with content. Our choice."""
KINDS: Final = {
    "content": "a request that differs from the recording",
    "missing": "recorded, and never made",
    "extra": "an additional request",
    "order": "a later request, made too early",
    "timing": "made too late or too early",
    "tool": "a tool call that differs from the recording",
    "world": "an exchange of the loop that differs from the recording",
    "outcome": "an end that differs from the recording",
    "result": "a result that differs from the recording",
    "network": "a connection that was not recorded",
}
"""Descriptions of the kinds of divergences."""
NATURES: Final = {
    "whitespace": "blanks only",
    "redaction": "placeholders of secrets only",
    "element order": "same elements, different order",
    "normalizer gap": "a value that changes with each run",
    "number": "a number only",
    "schema": "a tool's schema",
    "timing": "time only",
}
"""Descriptions of what all differences have in common."""
_INNER = frozenset(("input", "properties", "metadata", "(json inside)"))
"""Keys below these are not defined by the API."""
_UNIT = 44
"""The height of a line in pixels. Our choice."""


@dataclass(frozen=True, slots=True)
class _Path:
    """The positions of the requests of a lane: many are compressed to a gap."""

    before: tuple[int, ...]
    """The numbers of the matched requests that are drawn."""
    left_out: int
    """The number of matched requests that are left out, after the second one."""
    number: int
    """The request at which the paths diverge."""
    after: tuple[int, ...]
    """The numbers of the unrequested requests that are drawn."""
    more: int
    """The number of further unrequested ones."""

    def at(self, number: int) -> float:
        """Return the position of a request; the start of the lane is at 0."""
        if number in self.before:
            return self.before.index(number) + 1 + (self.left_out > 0 and number > 2)
        return len(self.before) + 1 + (self.left_out > 0) + (number - self.number)


def divergence(report: Mapping[str, Any], *, content: bool = False) -> go.Figure:
    """Return the figure of a replay that diverged from its recording.

    Args:
        report: the output of `agentobs replay --json`, parsed.
        content: whether hover texts show the recorded and the new content.
    """
    number, of = _whole(report.get("number")), _whole(report.get("of"))
    if not report.get("kind") or number < 1:
        return nothing("the replay did not diverge from its recording")
    path = _path(number, of)
    figure = go.Figure(layout=layout(legend_traceorder="normal", barmode="overlay"))
    _add_matched(figure, path, report)
    has_rest = of >= number
    if has_rest:
        _add_recorded(figure, path, report, content)
    _add_replayed(figure, path, report, content)
    last = path.at(number) + len(path.after) + (path.more > 0)
    below = _below(report)
    _write_sides(figure, path, report, below, last, has_rest=has_rest)
    low = -1.5 - 0.34 * len(below)
    low = _add_lanes(figure, report, last, low)
    figure.update_xaxes(visible=False, range=[-0.4, last + 0.6])
    figure.update_yaxes(range=[low, 2.1], showgrid=False, zeroline=False, ticklabelstandoff=4)
    figure.update_layout(height=round(_UNIT * (2.1 - low)) + 48)
    return figure


def _path(number: int, of: int) -> _Path:
    if number - 1 > MOST_BEFORE:
        before, left_out = (1, 2, *range(number - 6, number)), number - 1 - 8
    else:
        before, left_out = tuple(range(1, number)), 0
    after = tuple(range(number + 1, min(of, number + MOST_AFTER) + 1))
    return _Path(before, left_out, number, after, max(0, of - number - MOST_AFTER))


def _add_matched(figure: go.Figure, path: _Path, report: Row) -> None:
    """Draw the common path."""
    x: list[float | None] = [0, *(path.at(each) for each in path.before)]
    said = ["the start", *(f"request {each:,}: as recorded" for each in path.before)]
    lane = plain(report.get("lane") or "main", 30)
    _write(figure, -0.1, 0.35, f"lane {lane}", anchor="left")
    _number(figure, path, path.before, -0.33)
    if path.left_out:
        x[3:3] = [None]
        said[3:3] = [""]
        for begin, end in ((path.at(2), path.at(path.before[2])),):
            _line(figure, begin, 0, end, 0, BLUE, dash="dot")
            _write(figure, (begin + end) / 2, 0.35, f"{path.left_out:,} more")
    figure.add_scatter(
        name="replayed as recorded",
        mode="lines+markers",
        x=x,
        y=[None if each is None else 0 for each in x],
        line=dict(color=BLUE, width=3),
        marker=dict(color=BLUE, size=10, symbol=["circle-open", *["circle"] * (len(x) - 1)]),
        hovertext=said,
        hovertemplate="%{hovertext}<extra></extra>",
    )


def _add_recorded(figure: go.Figure, path: _Path, report: Row, content: bool) -> None:
    """Draw the recorded path that the replay did not take."""
    due = [path.number, *path.after]
    x = [path.at(each) for each in due]
    _line(figure, x[0] - 1, 0, x[0], 1, STEEL, dash="dash")
    _number(figure, path, due, 0.67)
    said = [f"request {each:,}: recorded, never made" for each in due]
    said[0] = f"request {path.number:,}: what was recorded"
    if content:
        said[0] += _texts(report, "expected")
        following = _list(_dict(report.get("left")).get("following"))
        for at, text in enumerate(following[: len(said) - 1], 1):
            said[at] += f"<br>{plain(text, CUT)}"
    figure.add_scatter(
        name="recorded, never made",
        mode="lines+markers",
        x=x,
        y=[1] * len(x),
        line=dict(color=STEEL, width=2, dash="dash"),
        marker=dict(color=STEEL, size=10, symbol="circle-open"),
        hovertext=said,
        hovertemplate="%{hovertext}<extra></extra>",
    )
    if path.more:
        _line(figure, x[-1], 1, x[-1] + 1, 1, STEEL, dash="dot")
        _write(figure, x[-1] + 0.5, 1.33, f"{path.more:,} more")


def _add_replayed(figure: go.Figure, path: _Path, report: Row, content: bool) -> None:
    """Draw the path and the end of the replay."""
    x = path.at(path.number)
    _line(figure, x - 1, 0, x, -1, RED)
    said = f"{_where(report)}<br>{_what(report)}"
    if content:
        said += f"<br>{plain(report.get('summary') or '', CUT)}{_texts(report, 'actual')}"
        if cause := _dict(report.get("cause")).get("text"):
            said += f"<br>why: {plain(cause, CUT)}"
    figure.add_scatter(
        name="replayed otherwise",
        mode="markers",
        x=[x],
        y=[-1],
        marker=dict(color=RED, size=13, symbol="x"),
        hovertext=[said],
        hovertemplate="%{hovertext}<extra></extra>",
    )


def _write_sides(
    figure: go.Figure,
    path: _Path,
    report: Row,
    below: Sequence[str],
    last: float,
    *,
    has_rest: bool,
) -> None:
    """Label the recorded path with what was not requested, and the other one with what differs."""
    x = path.at(path.number)
    # The side with more space: right or left of the fork.
    is_late = x > (last + 0.2) / 2
    anchor, at = ("right", x + 0.3) if is_late else ("left", x - 0.3)
    above = _left(report) if has_rest else "the recording ends before it"
    _write(figure, at, 1.6, above, anchor=anchor, color=INK)
    _write(figure, at, -1.35, "<br>".join(below), anchor=anchor, color=INK, top=True)


def _below(report: Row) -> list[str]:
    """Return what differs now, one line each."""
    lines = [_where(report), _what(report), *_places(report)]
    cause = _dict(report.get("cause"))
    if kind := cause.get("kind"):
        tool = f" of {plain(cause['tool'], 24)}" if cause.get("tool") else ""
        lines.append(f"probably by: {plain(kind, 24).replace('_', ' ')}{tool}")
    return lines


def _add_lanes(figure: go.Figure, report: Row, last: float, low: float) -> float:
    """Draw below `low` how far the other lanes got, and return the lower end."""
    found = [each for each in _list(report.get("lanes")) if isinstance(each, Mapping)]
    others = [each for each in found if each.get("lane") != report.get("lane")]
    shown = others[:MOST_LANES]
    y = [low - 0.4 - 0.6 * at for at in range(len(shown))]
    names = [plain(each.get("lane") or "unknown lane", 24) for each in shown]
    asked = [_whole(each.get("asked")) for each in shown]
    of = [max(_whole(each.get("of")), part, 1) for each, part in zip(shown, asked, strict=True)]
    told = [
        f"{name}: {a:,} of {count(b, 'request')} as recorded"
        for name, a, b in zip(names, asked, of, strict=True)
    ]
    whole = (last + 0.6) * 0.6
    for name, mark, lengths in (
        ("in another lane", Mark(SILVER), [whole] * len(shown)),
        ("as recorded", Mark(BLUE), [whole * a / b for a, b in zip(asked, of, strict=True)]),
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
                hovertext=told,
                hovertemplate="%{hovertext}<extra></extra>",
            )
    for at, a, b in zip(y, asked, of, strict=True):
        _write(figure, whole + 0.01 * last, at, f"{a:,} of {b:,} as recorded", anchor="left")
    low -= 0.6 * len(shown) + 0.2 * bool(shown)
    if rest := len(others) - len(shown):
        _write(figure, 0, low - 0.1, f"and {count(rest, 'lane')} more", anchor="left")
        low -= 0.5
    figure.update_yaxes(
        tickmode="array",
        tickvals=[1, 0, -1, *y],
        ticktext=["recorded", "both", "replayed", *names],
    )
    return low


def _where(report: Row) -> str:
    turn = report.get("turn")
    attempt = _whole(report.get("attempt"))
    number, of = _whole(report.get("number")), _whole(report.get("of"))
    told = [
        f"request {number:,} of {of:,}" if number <= of else f"request {number:,}, after the last"
    ]
    told += [f"turn {turn:,}"] if isinstance(turn, int) else []
    told += [f"attempt {attempt:,}"] if attempt > 1 else []
    return ", ".join(told)


def _what(report: Row) -> str:
    kind = str(report.get("kind"))
    nature = str(report.get("nature") or "")
    told = NATURES.get(nature, plain(nature, 24))
    return f"{KINDS.get(kind, plain(kind, 24))}{f': {told}' if told else ''}"


def _left(report: Row) -> str:
    """Return a description of what was not requested."""
    left = _dict(report.get("left"))
    kinds = (("requests", "request"), ("tools", "tool call"), ("answers", "answer"))
    told = [count(number, word) for key, word in kinds if (number := _whole(left.get(key)))]
    return f"not made after it:<br>{', '.join(told)}" if told else "nothing was recorded after it"


def _places(report: Row) -> list[str]:
    found = [each for each in _list(report.get("differences")) if isinstance(each, Mapping)]
    more = max(0, len(found) - MOST_PLACES) + _whole(report.get("more"))
    told = [
        f"{plain(each.get('change') or 'changed', 12)} {_place(each)}"
        for each in found[:MOST_PLACES]
    ]
    return [*dict.fromkeys(told), *([f"and {count(more, 'place')} more"] if more else [])]


def _place(difference: Row) -> str:
    """Return where two requests differ, as far as the keys are defined by the API.

    It begins without a dollar sign: plotly takes text between two of them for a formula.
    """
    if str(difference.get("path")).startswith("request."):
        return plain(difference["path"], 60)
    written = ""
    for key in _list(difference.get("keys")):
        if isinstance(key, int):
            written += f"[{key}]"
        elif key in field_names() or key == "(json inside)":
            written += f".{key}" if key in field_names() else ""
        else:
            return f"{written}.…".removeprefix(".")
        if key in _INNER:
            return f"{written}.…".removeprefix(".")
    return plain(written.removeprefix(".") or "the request", 60)


def _texts(report: Row, side: str) -> str:
    """Return the recorded and the new values at the first positions, with their full paths."""
    found = [each for each in _list(report.get("differences")) if isinstance(each, Mapping)]
    return "".join(
        f"<br>{plain(each.get('path') or '', CUT)}: {plain(each.get(side), CUT)}"
        for each in found[:MOST_PLACES]
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


def _number(figure: go.Figure, path: _Path, numbers: Sequence[int], y: float) -> None:
    """Write the numbers of requests below their marks."""
    for each in numbers:
        _write(figure, path.at(each), y, f"{each:,}")


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _dict(value: Any) -> Row:
    return value if isinstance(value, Mapping) else {}
