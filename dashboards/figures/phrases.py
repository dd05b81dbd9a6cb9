"""Texts of figures: escaped text, amounts with units, and the placeholder for empty figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import plotly.graph_objects as go

from agentobs.records import display
from agentobs.store.analysis.lane_names import name_of_lane
from dashboards.style import FAINT, layout

Row = Mapping[str, Any]
"""A row of a named query."""
LONGEST = 80
"""The maximum number of characters of a text from a row. Our choice."""
ROW = 26
"""The height of a row of names and bars, in pixels. Our choice."""


def plain(text: object, most: int = LONGEST) -> str:
    """Return text that is safe in a figure: without markup and invisible or bidirectional characters, and not too long.

    Plotly interprets `<b>`, `<a href>` and entities in texts as markup, so they are escaped.
    """
    if text is None:
        return "unknown"
    shortened = str(text)[: most + 1]
    text_shown = display.printable(shortened.encode("utf-8", "replace").decode())
    if len(shortened) > most or len(text_shown) > most:
        text_shown = f"{text_shown[: most - 1]}…"
    return text_shown.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def name_of(row: Row, most: int = LONGEST) -> str:
    """Return the display name of a session: its name, if it has one, and a suffix of its ID. Pass it to `plain`."""
    session_id = str(row.get("session_id") or "")
    suffix = f"…{session_id[-6:]}" if len(session_id) > 12 else session_id
    name = str(row.get("name") or "")
    space = most - len(suffix) - 1
    if len(name) > space:
        name = f"{name[: space - 1]}…"
    return f"{name} {suffix}".strip() or "unknown"


def lane_of(row: Row) -> str:
    """Return the display name of the lane of a row: its `agent`, else a name made from the lane."""
    return str(row.get("agent") or name_of_lane(str(row.get("lane") or "unknown lane")))


def place_of(row: Row) -> str:
    """Return the turn and the agent of a finding in words; an agent other than the main agent is named."""
    where = "" if row["lane"] in (None, "main") else f" of {lane_of(row)}"
    return f"the session{where}" if row["turn"] is None else f"turn {row['turn']:,}{where}"


def finding_words(evidence: Sequence[Row], number: int) -> str:
    """Return a sentence with how often a failure signature was found, and what its strongest evidence is.

    Args:
        evidence: the rows of its evidence, the strongest first.
        number: the number of all rows.
    """
    worst = evidence[0]
    # This signature is about a whole session, and its evidence is the most expensive request.
    most = "most clearly " if number > 1 or worst["signature"] == "cache_rewrites" else ""
    about = f"{display.printable(str(worst['about']))}, " if worst["about"] else ""
    found = f"Found {times(number)}, {most}in {place_of(worst)}: {about}"
    return f"{found}{display.printable(str(worst['detail']))}."


def count(number: int | float | None, word: str) -> str:
    """Return a count with its noun: `1 call`, `2,000 calls`."""
    number = number or 0
    return f"{number:,} {word if number == 1 else f'{word}s'}"


def times(number: int) -> str:
    """Return how often something happened: `once`, `twice`, `5 times`."""
    return {1: "once", 2: "twice"}.get(number, f"{number:,} times")


def money(value: Decimal | float | None, rows: Iterable[Row] = ()) -> str:
    """Return US dollars as text, as everywhere: `$1.2000`, `-$0.0300`; `no price` for None.

    If the rows make the amount a lower bound, it is rounded down.
    """
    status = "lower_bound" if any(uncertainties(row)[0] for row in rows) else None
    return "no price" if value is None else display.money(Decimal(value), status)


def certain_money(value: Decimal | float, rows: Sequence[Row]) -> str:
    """Return a sum of the costs of rows with its certainty: `at least $1.2000`, `about $0.0300`."""
    return f"{certainty_prefix(rows)}{money(value, rows)}"


def amount(row: Row) -> str:
    """Return the cost of a row with its certainty: `at least $1.20`, `about $0.0300`, `no price`."""
    value = row.get("cost_usd")
    if value is None:
        return "no price" if row.get("calls", 1) else "nothing"
    return certain_money(value, [row])


def certainty_prefix(rows: Iterable[Row]) -> str:
    """Return the prefix of a sum of costs: `at least about `, `at least `, `about `, or empty if it is exact."""
    kinds = [uncertainties(row) for row in rows]
    words = zip(("at least ", "about "), zip(*kinds, strict=True), strict=True) if kinds else ()
    return "".join(word for word, holds in words if any(holds))


def uncertainty_note(row: Row) -> str:
    """Return why the cost of a row is not exact; empty if it is exact."""
    texts = (
        ("lower_bound_calls", "partly unknown: at least this amount"),
        ("estimated_calls", "estimated"),
        ("unpriced_calls", "without a price, not in the total"),
    )
    notes = [f"{count(row[key], 'call')} {text}" for key, text in texts if row.get(key)]
    if not notes and row.get("cost_status", "exact") not in (None, "exact"):
        notes = [plain(row["cost_status"]).replace("_", " ")]
    return "; ".join(notes)


def uncertain_total(row: Row) -> str:
    """Return a sentence with a total cost and why it is not exact; empty if it is exact or unknown."""
    texts = (
        ("lower_bound_calls", "of {} is only partly known"),
        ("unpriced_calls", "of {} is unknown, because there is no price"),
        ("estimated_calls", "of {} is estimated"),
    )
    notes = [text.format(count(row[key], "call")) for key, text in texts if row.get(key)]
    if row["cost_usd"] is None or not notes:
        return ""
    return f"The total is {amount(row)}: the cost {', the cost '.join(notes)}."


def uncertainties(row: Row) -> tuple[bool, bool]:
    """Return whether a cost is a lower bound, and whether it is estimated."""
    status = row.get("cost_status", "exact")
    is_low = any(row.get(key) for key in ("lower_bound_calls", "unpriced_calls", "unpriced"))
    return is_low or status in ("lower_bound", "unknown_model", "unpriced"), (
        bool(row.get("estimated_calls")) or status == "estimated"
    )


def empty_figure(text: str = "nothing to show") -> go.Figure:
    """Return a figure with a message that there is nothing to draw."""
    figure = go.Figure(layout=layout(height=120))
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False)
    figure.add_annotation(
        text=text, x=0.5, y=0.5, xref="paper", yref="paper", showarrow=False, font_color=FAINT
    )
    return figure


def filter_rows(figure: go.Figure, parameter: str, values: Sequence[Any]) -> None:
    """Note the session list filter that each row of a figure represents, so that a page can open the list.

    Args:
        figure: a figure with named rows.
        parameter: the parameter of the list, such as `model`.
        values: the value of each row from the top; None if a row has no filter.
    """
    rows = [address_text(value) for value in values]
    figure.update_layout(meta={"parameter": parameter, "rows": rows})


def address_text(value: object) -> str | None:
    """Return a value as text for an address; None if it is None, or not valid Unicode, as recorded names may be."""
    if value is None:
        return None
    try:
        str(value).encode()
    except UnicodeEncodeError:
        return None
    return str(value)


def named_rows(figure: go.Figure, names: list[str], *, above: int = 48, below: int = 48) -> None:
    """Label the rows of a figure with names, the first on top, and set the height for their number.

    The rows are at numeric positions, so that rows with equal names stay separate.
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
