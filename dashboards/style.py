"""The style of figures: the meaning of each color, light and dark, and the common layout.

Color alone carries no essential information: colors that color-blind readers might confuse also differ in lightness, or
one of them has a pattern. Figures are created in the light colors. `DARK` maps each color to its dark counterpart, so
that a page can recolor a figure in place, and print it in the light colors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import plotly.graph_objects as go

from agentobs.store.analysis.wall_time import Part


@dataclass(frozen=True, slots=True)
class Mark:
    """The style of one item."""

    color: str
    """The light color; a key of `DARK`."""
    pattern: str = ""
    """The pattern over the color: a value of plotly's `marker.pattern.shape`; empty for no pattern."""


BLUE, ORANGE, PURPLE, GREEN, RED = "#1f5fa8", "#e08a00", "#8e4a9e", "#2a9d78", "#c8382e"
SKY, STEEL, SILVER = "#8fc1e8", "#8a96a3", "#cfd6dd"
INK, FAINT, GRID, PAPER = "#1d2329", "#57606a", "#e3e7eb", "#ffffff"
ON_BRIGHT = "#101418"
"""The color of text on ORANGE, which is bright in both themes."""

DARK: Final = {
    BLUE: "#6fa8f0",
    ORANGE: "#f2b04a",
    PURPLE: "#cf94de",
    GREEN: "#5ccba5",
    RED: "#ff8a7a",
    SKY: "#3f6f9c",
    STEEL: "#7f8b98",
    SILVER: "#4a5460",
    INK: "#e6eaee",
    FAINT: "#a3adb8",
    GRID: "#2c333b",
    PAPER: "#14181d",
    ON_BRIGHT: ON_BRIGHT,
}
"""The dark counterpart of each color. Our choice; text has a contrast of at least 4.5 on PAPER in both themes."""

PARTS_OF_TIME: Final[dict[Part, Mark]] = {
    "model": Mark(BLUE),
    "tool": Mark(ORANGE),
    "person": Mark(PURPLE, "/"),
    "hook": Mark(GREEN, "."),
    "retry_wait": Mark(RED, "x"),
    "queued": Mark(STEEL, "-"),
    "own": Mark(SILVER),
}
"""The categories of time, as in `wall_time.Part`."""

TOKENS: Final = {
    "input_tokens": Mark(BLUE),
    "cache_read_tokens": Mark(SKY),
    "cache_write_tokens": Mark(GREEN, "/"),
    "output_tokens": Mark(ORANGE),
}
"""The four classes of tokens, in stacking order."""

PARTS_OF_COST: Final = {
    "input_usd": Mark(BLUE),
    "cache_read_usd": Mark(SKY),
    "cache_write_5m_usd": Mark(GREEN, "/"),
    "cache_write_1h_usd": Mark(GREEN, "x"),
    "output_usd": Mark(ORANGE),
    "server_tools_usd": Mark(PURPLE, "."),
}
"""The parts of a cost, in stacking order."""

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


def layout(**overrides: object) -> go.Layout:
    """Return the common layout of figures, updated with `overrides`; paper and plot are transparent."""
    axis = dict(
        gridcolor=GRID,
        linecolor=GRID,
        zerolinecolor=GRID,
        tickfont_color=FAINT,
        title_font=dict(size=12, color=FAINT),
        automargin=True,
    )
    shared = go.Layout(
        font=dict(family=FONT, size=12, color=INK),
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        margin=dict(l=8, r=8, t=8, b=8),
        xaxis=axis,
        yaxis=axis,
        bargap=0.25,
        legend=dict(orientation="h", x=0, y=1.02, yanchor="bottom", font_color=INK),
        hoverlabel=dict(bgcolor=PAPER, bordercolor=FAINT, font_color=INK),
        template="none",
    )
    shared.update(overrides)
    return shared


def bar(mark: Mark) -> dict[str, object]:
    """Return the `marker` of bars with the style `mark`."""
    marker: dict[str, object] = {"color": mark.color, "line": {"width": 0}}
    if mark.pattern:
        # If a pattern has no background color, plotly draws it on a transparent background.
        marker["pattern"] = {
            "shape": mark.pattern,
            "bgcolor": mark.color,
            "fgcolor": PAPER,
            "size": 6,
            "solidity": 0.35,
        }
    return marker
