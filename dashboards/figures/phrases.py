"""Texts of figures: escaped text, amounts with units, and the placeholder for empty figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

import plotly.graph_objects as go

from agentobs.records import display
from dashboards.style import FAINT, layout

Row = Mapping[str, Any]
"""A row of a named query."""
LONGEST = 80
"""How many characters of a text from rows are shown. Our choice."""
ROW = 26
"""The height of a row of names and bars, in pixels. Our choice."""


def plain(text: object, most: int = LONGEST) -> str:
    """Return text that is safe in a figure: no markup, nothing hidden or reversed, and not too long.

    Plotly interprets `<b>`, `<a href>` and entities in texts as markup, so they are escaped.
    """
    if text is None:
        return "unknown"
    cut = str(text)[: most + 1]
    whole = display.printable(cut.encode("utf-8", "replace").decode())
    if len(cut) > most or len(whole) > most:
        whole = f"{whole[: most - 1]}…"
    return whole.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def name_of(row: Row, most: int = LONGEST) -> str:
    """Return the display name of a session: its name and a suffix of its ID, or only the ID; not yet `plain`."""
    known = str(row.get("session_id") or "")
    end = f"…{known[-6:]}" if len(known) > 12 else known
    name = str(row.get("name") or "")
    room = most - len(end) - 1
    if len(name) > room:
        name = f"{name[: room - 1]}…"
    return f"{name} {end}".strip() or "unknown"


def lane_of(row: Row) -> str:
    """Return the display name of a lane: `main`, or below it the suffixes of the call IDs; not yet `plain`."""
    first, *calls = str(row.get("lane") or "unknown lane").split("/")
    return " › ".join([first, *(f"…{call[-4:]}" if len(call) > 12 else call for call in calls)])


def count(number: int | float | None, word: str) -> str:
    """Return a count with its noun: `1 call`, `2,000 calls`."""
    number = number or 0
    return f"{number:,} {word if number == 1 else f'{word}s'}"


def money(value: Decimal | float | None) -> str:
    """Return US dollars: with cents from one dollar on, else with significant digits."""
    if value is None:
        return "no price"
    exact = Decimal(value)
    if abs(exact) >= 1:
        return f"{'-' * (exact < 0)}${abs(exact):,.2f}"
    return str(display.money(exact)).replace("$-", "-$")


def amount(row: Row) -> str:
    """Return the cost of a row with its certainty: `at least $1.20`, `about $0.0300`, `no price`."""
    value = row.get("cost_usd")
    if value is None:
        return "no price" if row.get("calls", 1) else "nothing"
    return f"{sureness([row])}{money(value)}"


def sureness(rows: Iterable[Row]) -> str:
    """Return the prefix of a sum of costs: `at least about `, `at least `, `about `, or nothing."""
    doubts = [doubts_of(row) for row in rows]
    words = zip(("at least ", "about "), zip(*doubts, strict=True), strict=True) if doubts else ()
    return "".join(word for word, told in words if any(told))


def doubt(row: Row) -> str:
    """Return why the cost of a row is not exact; an empty string if it is exact."""
    told = (
        ("lower_bound_calls", "partly unknown: at least this amount"),
        ("estimated_calls", "estimated"),
        ("unpriced_calls", "without a price, not in the total"),
    )
    notes = [f"{count(row[key], 'call')} {text}" for key, text in told if row.get(key)]
    if not notes and row.get("cost_status", "exact") not in (None, "exact"):
        notes = [plain(row["cost_status"]).replace("_", " ")]
    return "; ".join(notes)


def doubts_of(row: Row) -> tuple[bool, bool]:
    """Return whether a cost is a lower bound, and whether it is estimated."""
    status = row.get("cost_status", "exact")
    is_low = any(row.get(key) for key in ("lower_bound_calls", "unpriced_calls", "unpriced"))
    return is_low or status in ("lower_bound", "unknown_model", "unpriced"), (
        bool(row.get("estimated_calls")) or status == "estimated"
    )


def nothing(text: str = "nothing to show") -> go.Figure:
    """Return a figure with a message that there is nothing to draw."""
    figure = go.Figure(layout=layout(height=120))
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False)
    figure.add_annotation(
        text=text, x=0.5, y=0.5, xref="paper", yref="paper", showarrow=False, font_color=FAINT
    )
    return figure


def named_rows(figure: go.Figure, names: list[str], *, above: int = 48, below: int = 48) -> None:
    """Make the y axis of a figure one of names, the first on top; the height depends on their number.

    Names are at numeric positions, so that two equal names are two rows.
    """
    figure.update_layout(height=above + below + ROW * max(len(names), 2))
    figure.update_yaxes(
        tickmode="array",
        tickvals=list(range(len(names))),
        ticktext=names,
        ticklabelstandoff=4,
        range=[len(names) - 0.5, -0.5],
        showgrid=False,
        zeroline=False,
        fixedrange=True,
    )
