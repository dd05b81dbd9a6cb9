"""How figures look: what each colour means, in the light and in the dark, and the layout that all share.

Colours alone tell nothing apart that matters: what may be mistaken by the colour-blind differs in lightness, too, or
has a pattern. A figure is made in the colours of the light; `DARK` says what each of them is in the dark, so that a
page can recolour a figure where it stands, and print it light.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import plotly.graph_objects as go

from agentobs.store.analysis.wall_time import Part


@dataclass(frozen=True, slots=True)
class Mark:
    """How one thing is drawn."""

    colour: str
    """In the light; a key of `DARK`."""
    pattern: str = ""
    """Plotly's `marker.pattern.shape`: drawn over the colour; empty for none."""


BLUE, ORANGE, PURPLE, GREEN, RED = "#1f5fa8", "#e08a00", "#8e4a9e", "#2a9d78", "#c8382e"
SKY, STEEL, SILVER = "#8fc1e8", "#8a96a3", "#cfd6dd"
INK, FAINT, GRID, PAPER = "#1d2329", "#57606a", "#e3e7eb", "#ffffff"
ON_BRIGHT = "#101418"
"""What is written on ORANGE, which is bright in the dark, too."""

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
"""What each colour is in the dark. Our choice; text has a contrast of at least 4.5 on PAPER in both."""

PARTS_OF_TIME: Final[dict[Part, Mark]] = {
    "model": Mark(BLUE),
    "tool": Mark(ORANGE),
    "person": Mark(PURPLE, "/"),
    "hook": Mark(GREEN, "."),
    "retry_wait": Mark(RED, "x"),
    "queued": Mark(STEEL, "-"),
    "own": Mark(SILVER),
}
"""What time was spent on, as in `walltime.Part`."""

TOKENS: Final = {
    "input_tokens": Mark(BLUE),
    "cache_read_tokens": Mark(SKY),
    "cache_write_tokens": Mark(GREEN, "/"),
    "output_tokens": Mark(ORANGE),
}
"""The four classes of tokens, in the order in which they are stacked."""

PARTS_OF_COST: Final = {
    "input_usd": Mark(BLUE),
    "cache_read_usd": Mark(SKY),
    "cache_write_5m_usd": Mark(GREEN, "/"),
    "cache_write_1h_usd": Mark(GREEN, "x"),
    "output_usd": Mark(ORANGE),
    "server_tools_usd": Mark(PURPLE, "."),
}
"""The parts of a cost, in the order in which they are stacked."""

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


def layout(**more: object) -> go.Layout:
    """Return the layout that all figures share, with `more` of it; paper and plot are transparent."""
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
    shared.update(more)
    return shared


def bar(mark: Mark) -> dict[str, object]:
    """Return the `marker` of bars that are drawn as `mark`."""
    drawn: dict[str, object] = {"color": mark.colour, "line": {"width": 0}}
    if mark.pattern:
        # Without a colour of its own behind it, plotly draws a pattern over nothing.
        drawn["pattern"] = {
            "shape": mark.pattern,
            "bgcolor": mark.colour,
            "fgcolor": PAPER,
            "size": 6,
            "solidity": 0.35,
        }
    return drawn
