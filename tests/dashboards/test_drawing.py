"""Figures as static SVG: marks are at the positions of their values, and texts stay within the drawing."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from typing import Any

import plotly.graph_objects as go
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dashboards import style
from dashboards.drawing import css, svg
from dashboards.drawing.number_formats import number
from dashboards.drawing.text_layout import width_of
from dashboards.style import BLUE, GREEN, INK, ORANGE, RED, Mark, bar

NS = "{http://www.w3.org/2000/svg}"
HOSTILE = "</text><script>alert(1)</script>\"'&\x1b[31m\u202e\x00\ud800 onload=x"


def drawn(figure: go.Figure, **more: Any) -> ET.Element:
    text = svg(figure, **{"title": "A title", "says": "What it shows.", **more})
    assert svg(figure, **{"title": "A title", "says": "What it shows.", **more}) == text
    return ET.fromstring(text)


def rects(root: ET.Element, trace: int) -> list[dict[str, float]]:
    [group] = [each for each in root.iter(f"{NS}g") if each.get("class") == f"marks m{trace}"]
    return [
        {name: float(each.get(name, "nan")) for name in ("x", "y", "width", "height")}
        for each in group.iter(f"{NS}rect")
    ]


def tooltips(root: ET.Element) -> list[str]:
    marks = [group for group in root.iter(f"{NS}g") if "marks" in str(group.get("class"))]
    return [str(title.text) for group in marks for title in group.iter(f"{NS}title")]


def written_texts(root: ET.Element) -> list[str]:
    return ["".join(each.itertext()) for each in root.iter(f"{NS}text")]


def linear_scale(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    """Return the slope and offset that map values to pixels; fail unless all pairs are on one line."""
    (a, first), (b, last) = min(pairs), max(pairs)
    slope = (last - first) / (b - a)
    for value, at in pairs:
        assert at == pytest.approx(first + (value - a) * slope, abs=0.16)
    return slope, first - a * slope


def test_stacked_bars_have_the_height_of_their_values() -> None:
    """The height of each bar is proportional to its value, and bars are stacked; None is not drawn."""
    heights = {"input": [1.0, 2.5, None], "cache": [0.5, 0.0, None], "output": [4.0, 1.0, 3.0]}
    bars = [
        go.Bar(name=name, x=["a", "b", "c"], y=values, marker=bar(Mark(color)))
        for (name, values), color in zip(heights.items(), (BLUE, GREEN, ORANGE), strict=True)
    ]
    root = drawn(go.Figure(bars, style.layout(barmode="stack", yaxis_title_text="US dollars")))
    inputs, caches, outputs = (rects(root, at) for at in range(3))
    assert [len(each) for each in (inputs, caches, outputs)] == [2, 1, 3]
    slope, _ = linear_scale(
        [
            (0.0, 0.0),
            *((1.0, inputs[0]["height"]), (2.5, inputs[1]["height"])),
            *((4.0, outputs[0]["height"]), (3.0, outputs[2]["height"])),
        ]
    )
    assert slope > 20
    assert caches[0]["y"] + caches[0]["height"] == pytest.approx(inputs[0]["y"], abs=0.11)
    assert outputs[0]["y"] + outputs[0]["height"] == pytest.approx(caches[0]["y"], abs=0.11)
    assert outputs[1]["y"] + outputs[1]["height"] == pytest.approx(inputs[1]["y"], abs=0.11)
    assert "US dollars" in written_texts(root)
    assert {"input", "cache", "output"} <= set(written_texts(root))


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(
    st.lists(
        st.tuples(st.floats(0, 1e5), st.floats(0.001, 1e5), st.integers(0, 9)),
        min_size=1,
        max_size=40,
    )
)
def test_intervals_are_at_their_times(intervals: list[tuple[float, float, int]]) -> None:
    """Horizontal bars with a base start and end on one scale, each in its track, for any number of bars."""
    marks = go.Bar(
        orientation="h",
        base=[start for start, _, _ in intervals],
        x=[length for _, length, _ in intervals],
        y=[f"track {track}" for _, _, track in intervals],
    )
    root = drawn(go.Figure([marks], style.layout(barmode="overlay")))
    found = rects(root, 0)
    assert len(found) == len(intervals)
    pairs = []
    for (start, length, _), rect in zip(intervals, found, strict=True):
        if rect["width"] > 1.3:
            pairs += [(start, rect["x"]), (start + length, rect["x"] + rect["width"])]
        assert rect["width"] >= 1.1
    if pairs:
        linear_scale(pairs)
    tracks: dict[int, set[float]] = {}
    for (_, _, track), rect in zip(intervals, found, strict=True):
        tracks.setdefault(track, set()).add(rect["y"])
    assert all(len(places) == 1 for places in tracks.values())
    assert len({min(places) for places in tracks.values()}) == len(tracks)


def test_points_on_a_logarithmic_axis() -> None:
    """On a logarithmic axis, equal ratios have equal distances, and each point has its symbol."""
    points = go.Scatter(
        x=[10, 100, 1000, 50_000], y=["a", "b", "c", "d"], mode="markers", marker_size=8
    )
    root = drawn(go.Figure([points], style.layout(xaxis_type="log")))
    circles = [(float(str(c.get("cx"))), float(str(c.get("cy")))) for c in root.iter(f"{NS}circle")]
    linear_scale(
        [(math.log10(x), at[0]) for x, at in zip((10, 100, 1000, 50_000), circles, strict=True)]
    )
    assert circles[0][1] > circles[3][1], "the first category is at the bottom"


def test_lines_break_at_gaps_and_use_their_axis() -> None:
    """A line on the second axis uses that axis's scale, and is interrupted if a value is missing."""
    figure = go.Figure(
        [
            go.Bar(name="tokens", x=[1, 2, 3, 4, 5], y=[1000, 2000, 3000, 4000, 5000]),
            go.Scatter(
                name="money",
                x=[1, 2, 3, 4, 5],
                y=[0.1, 0.2, None, 0.4, 0.5],
                mode="lines",
                yaxis="y2",
                line=dict(color=RED, width=2),
            ),
        ],
        style.layout(yaxis2=dict(overlaying="y", side="right", title_text="US dollars")),
    )
    root = drawn(figure)
    [group] = [each for each in root.iter(f"{NS}g") if each.get("class") == "marks m1"]
    paths = [str(path.get("d")) for path in group.iter(f"{NS}path")]
    assert len(paths) == 2
    ends = [
        tuple(map(float, pair)) for path in paths for pair in re.findall(r"([\d.]+) ([\d.]+)", path)
    ]
    linear_scale([(value, y) for value, (_, y) in zip((0.1, 0.2, 0.4, 0.5), ends, strict=True)])
    middles = [rect["x"] + rect["width"] / 2 for rect in rects(root, 0)]
    assert [x for x, _ in ends] == pytest.approx([middles[at] for at in (0, 1, 3, 4)], abs=0.16)


def test_dates_are_on_a_time_scale() -> None:
    """A day without a bar leaves a gap."""
    days = ["2026-11-01", "2026-11-02", "2026-11-05"]
    root = drawn(go.Figure([go.Bar(x=days, y=[1, 2, 3])], style.layout(xaxis_type="date")))
    linear_scale([(day, rect["x"]) for day, rect in zip((1, 2, 5), rects(root, 0), strict=True)])
    assert any(text.startswith("Nov 3") for text in written_texts(root))


def test_error_bars_shapes_and_annotations() -> None:
    """Error bars have their given length, a horizontal line is at its value, and an annotation is at its position."""
    figure = go.Figure(
        [
            go.Scatter(
                x=[0.2, 0.6],
                y=["a", "b"],
                mode="markers",
                error_x=dict(type="data", array=[0.1, 0.2], arrayminus=[0.2, 0.3], symmetric=False),
            )
        ],
        style.layout(
            xaxis_range=[0, 1],
            shapes=[dict(type="line", x0=0.5, x1=0.5, y0=0, y1=1, yref="paper", line_color=RED)],
            annotations=[dict(x=0.5, y=1, yref="paper", text="half", showarrow=False)],
        ),
    )
    root = drawn(figure)
    circles = [float(str(c.get("cx"))) for c in root.iter(f"{NS}circle")]
    slope, offset = linear_scale([(0.2, circles[0]), (0.6, circles[1])])
    lines = [str(path.get("d")) for path in root.iter(f"{NS}path")]
    ends = sorted(float(end) for d in lines for end in re.findall(r"^M[\d.]+ [\d.]+H([\d.]+)M", d))
    assert [round((end - offset) / slope, 2) for end in ends] == [0.0, 0.3, 0.3, 0.8]
    across = [re.match(r"M([\d.]+) [\d.]+L\1 [\d.]+$", d) for d in lines]
    tall = re.findall(r"M([\d.]+) ([\d.]+)L\1 ([\d.]+)", " ".join(lines))
    assert all(abs(float(top) - float(bottom)) > 200 for _, bottom, top in tall)
    places = {round((float(each[1]) - offset) / slope, 2) for each in across if each}
    assert places == {0.0, 0.5}, "the line of zero, and the one that was asked for"
    assert "half" in written_texts(root)


def test_marks_have_tooltips() -> None:
    """The tooltip of a mark is its hover text as plain text, with formatted values."""
    marks = go.Bar(
        name="output",
        x=["m"],
        y=[0.12345],
        customdata=[["<i>two</i> &lt;b&gt;", 1_234_567]],
        hovertemplate="<b>%{x}</b><br>%{y:$,.4f} for %{customdata[1]:,} tokens, %{customdata[0]}"
        "<br>%{fullData.name}<extra>beside</extra>",
    )
    root = drawn(go.Figure([marks], style.layout()))
    assert tooltips(root) == ["m\n$0.1235 for 1,234,567 tokens, two <b>\noutput"]


@pytest.mark.parametrize(
    ("value", "form", "expected"),
    [
        (1234.5, ",.2f", "1,234.50"),
        (0.256, ".0%", "26%"),
        (0.0421, "$,.4f", "$0.0421"),
        (-1.5, "$.2f", "−$1.50"),
        (12_000, "", "12k"),
        (5000, "", "5000"),
        (2_500_000, "", "2.5M"),
        (0.25, "", "0.25"),
        (1_234_567, "d", "1234567"),
        (1.5000, ".3~f", "1.5"),
        (12_345, ".3s", "12.3k"),
        (0, "", "0"),
    ],
)
def test_numbers_are_formatted_as_in_plotly(value: float, form: str, expected: str) -> None:
    """The d3 formats that figures use give the same result as in Plotly."""
    assert number(value, form) == expected


def test_texts_cannot_become_markup() -> None:
    """Names, hover texts, ticks, titles and annotations are drawn as text.

    They create no element and no attribute, and contain no character that XML rejects.
    """
    figure = go.Figure(
        [
            go.Bar(name=HOSTILE, x=[HOSTILE, "b"], y=[1, 2], text=HOSTILE, hovertemplate=HOSTILE),
            go.Scatter(
                name="two",
                x=[HOSTILE],
                y=[1],
                mode="markers+text",
                text=[HOSTILE],
                marker_color=RED,
            ),
        ],
        style.layout(
            xaxis_title_text=HOSTILE, annotations=[dict(x=0, y=1, text=HOSTILE, showarrow=False)]
        ),
    )
    root = drawn(figure, title=HOSTILE, says=HOSTILE)
    names = {each.tag.removeprefix(NS) for each in root.iter()}
    known = {"svg", "g", "rect", "path", "circle", "text", "tspan", "title", "desc", "defs"}
    assert names <= known | {"clipPath", "pattern"}
    attributes = {name for each in root.iter() for name in each.attrib}
    assert not any(
        name.startswith("on") or "href" in name or name == "style" for name in attributes
    )
    assert str(root[0].text).startswith("</text><script>alert(1)</script>")
    assert not re.search("[\x00-\x08\x0b-\x1f\ud800-\udfff]", "".join(root.itertext()))


def _texts_outside(root: ET.Element, width: float) -> list[str]:
    """Return the texts that would extend beyond the edge with their maximum width."""
    found = []
    for each in root.iter(f"{NS}text"):
        text = "".join(each.itertext())
        if each.get("transform"):
            continue
        at = float(str(each.get("x") or each[0].get("x")))
        wide = max(width_of(line, 12) for line in ([t.text or "" for t in each] or [text]))
        start = {"middle": 0.5, "end": 1.0}.get(str(each.get("text-anchor")), 0.0)
        if at - wide * start < -1 or at + wide * (1 - start) > width + 1:
            found.append(text)
    return found


@pytest.mark.parametrize("width", [360, 960])
def test_texts_stay_within_the_drawing(width: int) -> None:
    """Long names get space or are cut, so that no text extends beyond the edge, whatever the width."""
    long = "a-very-long-name-of-an-agent-that-nobody-would-give/" * 4
    figure = go.Figure(
        [
            go.Bar(
                name=f"{n} {long}",
                orientation="h",
                x=[1, 2],
                y=[f"{long}{n}", "b"],
                marker=bar(Mark(BLUE)),
            )
            for n in range(5)
        ],
        style.layout(
            barmode="stack",
            xaxis_title_text=long,
            annotations=[dict(x=2, y="b", text=long, showarrow=False)],
        ),
    )
    root = drawn(figure, width=width)
    assert _texts_outside(root, width) == []
    assert any("…" in text for text in written_texts(root))


def test_colors_are_classes_that_a_page_can_change() -> None:
    """Each color has a class with a custom property that a page can change; the light colors are the default."""
    root = drawn(go.Figure([go.Bar(x=["a"], y=[1], marker_color=RED)], style.layout()))
    [group] = [each for each in root.iter(f"{NS}g") if each.get("class") == f"f{RED[1:]}"]
    assert group.get("fill") == RED
    rules = css()
    assert f".drawing .f{RED[1:]}{{fill:var(--red,{RED})}}" in rules
    assert all(f".s{color[1:]}{{" in rules for color in style.DARK)
    assert f"var(--ink,{INK})" in rules


def test_patterns_are_drawn_over_their_color() -> None:
    """A pattern is drawn over its color, with an ID that is unique among the drawings of a page."""
    marks = go.Figure(
        [go.Bar(x=["a"], y=[1], marker=bar(Mark(GREEN, shape))) for shape in ("/", "x", ".")],
        style.layout(),
    )
    one, other = drawn(marks), drawn(marks, title="Another")
    ids = {str(each.get("id")) for each in one.iter(f"{NS}pattern")}
    assert len(ids) == 3
    assert not ids & {str(each.get("id")) for each in other.iter(f"{NS}pattern")}
    used = {str(each.get("fill"))[5:-1] for each in one.iter(f"{NS}g")}
    assert ids <= used


def test_unsupported_figures_raise() -> None:
    """An unknown type of trace or shape raises an error, so that no figure is drawn incompletely."""
    with pytest.raises(ValueError, match="type pie"):
        svg(go.Figure([go.Pie(values=[1])]), title="", says="")
    figure = go.Figure([], style.layout(shapes=[dict(type="circle", x0=0, x1=1, y0=0, y1=1)]))
    with pytest.raises(ValueError, match="type circle"):
        svg(figure, title="", says="")


def test_thousands_separators_on_request() -> None:
    """Ticks have thousands separators only if the axis requests them."""
    for is_separated, expected in ((True, "$2,000"), (False, "$2000")):
        axis = dict(separatethousands=is_separated, tickprefix="$", dtick=1000)
        root = drawn(go.Figure([go.Bar(x=["a"], y=[3000])], style.layout(yaxis=axis)))
        assert expected in written_texts(root)


def test_an_empty_figure_has_a_message() -> None:
    """A figure without data has a message in its center."""
    note = dict(text="nothing to show", x=0.5, y=0.5, xref="paper", yref="paper", showarrow=False)
    root = drawn(
        go.Figure([], style.layout(annotations=[note], xaxis_visible=False, yaxis_visible=False))
    )
    assert written_texts(root) == ["nothing to show"]


def test_many_marks_stay_small() -> None:
    """A thousand intervals with their tooltips take less than 200 kB."""
    marks = go.Bar(
        orientation="h",
        base=list(range(1000)),
        x=[0.7] * 1000,
        y=["main"] * 1000,
        customdata=[f"turn {n}" for n in range(1000)],
        hovertemplate="%{customdata}<br>%{x:.2f} s<extra></extra>",
    )
    assert len(svg(go.Figure([marks], style.layout()), title="", says="")) < 200_000
