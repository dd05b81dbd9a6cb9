"""Rendering of pages from templates, with all text escaped and all values formatted.

The live application and the static reports share the templates. All recorded text goes through Jinja's escaping;
invisible characters and characters that change the direction of text are shown as escapes.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
import plotly.graph_objects as go
import plotly.offline
from markupsafe import Markup, escape

from agentobs.records import display
from agentobs.records.request_failures import outcome_words
from agentobs.records.words import ESTIMATED_TIMES, STEP_KINDS, UNSEEN_WAITS
from agentobs.store.analysis.failed_steps import call_notes
from agentobs.store.analysis.lane_names import name_of_lane
from agentobs.store.analysis.unfinished_turns import unfinished_words
from dashboards.content.json_tree import json_tree
from dashboards.content.markdown import markdown
from dashboards.figures.phrases import finding_words, uncertainties, uncertainty_note
from dashboards.style import DARK

_HERE = Path(__file__).parents[1]
_HEADINGS = {
    "input_usd": "input $",
    "output_usd": "output $",
    "at_ns": "at",
    "started_ns": "started",
}
_UNITS = ("_ns", "_usd")
INSTANTS = ("started_ns", "ended_ns", "at_ns", "last_activity_ns", "asked_ns")
"""The columns that contain times; tables align them to the left, like text."""
_MAPS = re.compile(r"'\.maplibregl-map\{[^']*'")
"""Matches the style of maps in plotly's script, which is not needed, and is blocked by the content security policy."""


def page(template: str, **values: Any) -> str:
    """Return a page of HTML.

    Args:
        template: the name of a file in `templates`.
        values: the values of the template. A missing value raises an error.
    """
    return _environment().get_template(template).render(**values)


def figure_json(figure: go.Figure) -> Markup:
    """Return a figure as JSON that is safe in a `script` element: `<`, `>` and `&` are escaped."""
    text = figure.to_json()
    assert text is not None
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


@cache
def plotly_script() -> str:
    """Return plotly.js from its package, without the style of maps that it would add to each page."""
    return _MAPS.sub("''", str(plotly.offline.get_plotlyjs()), count=1)


@cache
def asset(name: str) -> str:
    """Return the text of a file in `assets`."""
    return (_HERE / "assets" / name).read_text("utf-8")


def csp_hash(text: str) -> str:
    """Return the hash with which a Content-Security-Policy allows an inline script or style.

    Source: Content Security Policy Level 3, 2.3.1 (hash-source).
    """
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def heading(column: str) -> str:
    """Return the label of a column; the unit is shown with each value."""
    for unit in _UNITS:
        if column not in _HEADINGS:
            column = column.removesuffix(unit)
    return _HEADINGS.get(column, column.replace("_", " "))


def cell(column: str, value: Any, row: Mapping[str, Any] | None = None) -> str | Markup:
    """Return a value for a table, formatted by the name of its column; costs use the row for their certainty."""
    if column == "cost_usd" and row is not None:
        return cost(row)
    if (guess := display.estimated(column, value, row or {})) is not None:
        return Markup('<span title="{}">{}</span>').format(ESTIMATED_TIMES, guess)
    if value is None:
        return Markup('<span class="none" title="unknown">–</span>')
    if column == "output_tokens" and row is not None:
        return output_tokens(row)
    if column == "lane":
        return lane_name(value, row.get("agent") if row is not None else None)
    if column in INSTANTS:
        return instant(value)
    return display.text(display.pretty(column, value))


def lane_name(value: object, agent: object = None) -> Markup:
    """Return the display name of a lane, with the lane itself as its title if they differ.

    Args:
        value: the lane.
        agent: its display name; None if only the lane is known.
    """
    full = display.printable(str(value))
    name = display.printable(str(agent or name_of_lane(str(value))))
    if name == full:
        return escape(name)
    return Markup('<span class="lane" title="{}">{}</span>').format(full, name)


def is_number(value: Any) -> bool:
    """Return whether a value is aligned to the right in a table."""
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def instant(ns: int | None) -> str | Markup:
    """Return a time (nanoseconds since 1970) as a `time` element in UTC; a script may convert it to local time."""
    if ns is None:
        return "–"
    try:
        at = datetime.fromtimestamp(ns // 1_000_000_000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{ns} ns"
    return Markup('<time datetime="{}">{} UTC</time>').format(
        at.strftime("%Y-%m-%dT%H:%M:%SZ"), at.strftime("%Y-%m-%d %H:%M:%S")
    )


def cost(row: Mapping[str, Any], *, is_exact: bool = False) -> Markup:
    """Return the cost of a row with its certainty; an exact cost has no note.

    Args:
        row: `cost_usd` in US dollars, None if no price is known; `cost_status`, and the numbers of calls by certainty,
            as in `cost_by_session`.
        is_exact: whether to show all digits.
    """
    value, kinds = row["cost_usd"], uncertainties(row)
    if value is None:
        return Markup('<span class="doubt">unknown</span>') if any(kinds) else Markup("–")
    status = "lower_bound" if kinds[0] else None
    money = display.exact_money(value) if is_exact else display.money(value, status)
    if not any(kinds):
        return Markup('<span class="money">{}</span>').format(money)
    signs = " ".join(sign for sign, is_so in zip(_UNCERTAINTIES, kinds, strict=True) if is_so)
    label = Markup(' <span class="doubt">estimated</span>') if kinds[1] else ""
    return Markup('<span class="money" title="{}">{} {}{}</span>').format(
        uncertainty_note(row), signs, money, label
    )


def output_tokens(row: Mapping[str, Any], unit: str = "") -> str | Markup:
    """Return the output tokens of a row; if a response was cut, as the lower bound that the provider had reported.

    Args:
        row: `output_tokens`, and the certainty of its cost, as for `cost`.
        unit: a text after the number, such as ` tokens`.
    """
    count = display.text(row["output_tokens"]) + unit
    if not display.has_partial_counts(row) or row["output_tokens"] is None:
        return count
    return Markup('<span class="money" title="{}">≥ {}</span>').format(
        f"at least {count}: a response was cut, and the provider had reported only these tokens",
        count,
    )


_UNCERTAINTIES = ("≥", "≈")
"""The signs of a lower bound and of an estimate."""


def byte_count(value: int | None) -> str:
    """Return a readable number of bytes, in units of 1,000."""
    if value is None:
        return "–"
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1000  # type: ignore[assignment]
    return f"{value:,.1f} GB"


def segment(value: str) -> str:
    """Return an ID, which may contain slashes, escaped for a segment of a path or a value of a query string."""
    return quote(value, safe="")


def short_id(value: str) -> str:
    """Return a suffix of an ID. Prefixes are similar, because they contain the time."""
    return f"…{value[-8:]}" if len(value) > 12 else value


@cache
def _environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "tokens": lambda value: "–" if value is None else f"{value:,}",
        "money": lambda value: "–" if value is None else display.money(value),
        "exact_money": lambda value: "–" if value is None else display.exact_money(value),
        "seconds": lambda value: "–" if value is None else display.seconds(value),
        "instant": instant,
        "bytes": byte_count,
        "plain": lambda value: "–" if value is None else display.printable(str(value)),
        "outcome_words": lambda value: outcome_words(str(value)),
        "short_id": short_id,
        "segment": segment,
        "heading": heading,
        "markdown": markdown,
        "json_tree": json_tree,
        "strongest": finding_words,
        "unfinished_words": unfinished_words,
        "ratio": lambda value: "–" if value is None else display.share(value, digits=1),
    }
    made.tests["numeric"] = is_number
    made.globals |= {
        "step_kinds": STEP_KINDS,
        "estimated_times": ESTIMATED_TIMES,
        "unseen_waits": UNSEEN_WAITS,
        "instants": INSTANTS,
        "call_notes": call_notes,
        "cell": cell,
        "cost": cost,
        "lane_name": lane_name,
        "output_tokens": output_tokens,
        "dark": DARK,
        "escape": escape,
    }
    return made
