"""Code that commands with queries share: opening the store, and printing rows as text, JSON or CSV."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import click

from agentobs.cli.terminal.home_option import home_option
from agentobs.cli.terminal.instants import local_instant, zone_name
from agentobs.cli.terminal.progress_line import Spinner
from agentobs.cli.terminal.tables import show_table
from agentobs.errors import UsageError
from agentobs.records.display import (
    COST_SIGNS,
    ESTIMATES,
    certain_money,
    estimated,
    has_partial_counts,
    pretty,
    text,
)
from agentobs.records.words import COST_STATUSES, PARTS_OF_TIME
from exporters.row_text import write_csv, write_json

if TYPE_CHECKING:
    from agentobs.store.port import Store, Table

Form = Literal["table", "json", "csv"]
Rows = tuple[list[str], list[tuple[Any, ...]]]
"""Column names, and rows."""


def form_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--table`, `--json` and `--csv`."""
    command = click.option("--csv", "form", flag_value="csv", help="Print CSV.")(command)
    command = click.option(
        "--json", "form", flag_value="json", help="Print JSON, one object per line."
    )(command)
    return click.option(
        "--table",
        "form",
        flag_value="table",
        default="table",
        help="Print a table, the default. On a terminal, it fits the width, or COLUMNS. In a pipe or a file, it has "
        "all columns and whole values whatever COLUMNS is, because other programs read it.",
    )(command)


@contextmanager
def open_store(context: click.Context) -> Iterator[Store]:
    """Connect to the store of the chosen home."""
    from agentobs.store.backend import open_store as open_backend
    from agentobs.store.label_texts import LabelTexts

    with Spinner("opening the store"):
        opened = open_backend(home_option(context))
    with opened as store:
        context.meta[_TEXTS] = LabelTexts(store)
        yield store


_TEXTS = "agentobs texts"
"""The key under which the click context holds the label texts of the open store."""
_IDS = "agentobs short ids"
"""The key under which the click context holds the short forms of session IDs."""


def with_texts(rows: Rows) -> Rows:
    """Replace digests of names and reasons in rows by their texts, for display on this machine."""
    context = click.get_current_context(silent=True)
    texts = context.meta.get(_TEXTS) if context else None
    return rows if texts is None else (rows[0], texts.replace_in_rows(rows[1]))


def session_of(store: Store, text: str) -> str:
    """Return the ID of a session, given its ID, a suffix of it, or its name."""
    from agentobs.store.session_lookup import find_session

    try:
        return find_session(store, text, key=store.home.key())
    except UsageError as error:
        _, [(todo,)] = with_texts(([], [(error.todo,)]))
        raise UsageError(error.found, where=error.where, todo=todo) from error


def rows_of(store: Store, name: str, **parameters: Any) -> Rows:
    """Run a named query and return its rows, with digests of names and reasons replaced by their texts."""
    with Spinner("reading the store"):
        return rows_of_table(store.rows(name, **parameters), store)


def rows_of_table(table: Table, store: Store) -> Rows:
    """Return all rows of a query result, with digests of names and reasons replaced by their texts."""
    rows = with_texts((table.columns, table.rows))
    _remember_ids(store, rows)
    return rows


def agent_names(store: Store, session_id: str) -> dict[str, str]:
    """Return the display names of the lanes of a session, by lane."""
    from agentobs.store.analysis.lane_names import names_in_session

    return names_in_session(store, session_id, _restored)


def with_lane_names(rows: Rows, store: Store, session_id: str) -> Rows:
    """Return rows of a session with the display names of their lanes in place of the lanes."""
    from agentobs.store.analysis.lane_names import name_of_lane

    columns, values = rows
    at = columns.index("lane")
    names = agent_names(store, session_id)
    return columns, [
        (*row[:at], None if row[at] is None else name_of_lane(str(row[at]), names), *row[at + 1 :])
        for row in values
    ]


def with_lane_names_of_sessions(rows: Rows, store: Store) -> Rows:
    """Return rows about lanes of several sessions with the display names of the lanes in place of the lanes."""
    from agentobs.store.analysis.lane_names import with_agents_of_sessions

    named = with_agents_of_sessions(store, as_dicts(rows), _restored)
    return rows[0], [
        tuple({**row, "lane": row.get("agent")}[name] for name in rows[0]) for row in named
    ]


def _restored(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows with digests of names replaced by their texts."""
    if not rows:
        return []
    return as_dicts(with_texts((list(rows[0]), [tuple(row.values()) for row in rows])))


def as_dicts(rows: Rows) -> list[dict[str, Any]]:
    """Return each row as a dict with the column names as keys."""
    columns, values = rows
    return [dict(zip(columns, row, strict=True)) for row in values]


def print_rows(rows: Rows, shown: Sequence[str], form: Form) -> None:
    """Print rows: JSON and CSV get all columns unchanged; a table gets the `shown` columns in readable form.

    In a table without the column `cost_status`, the sign of a cost shows that it is a lower bound or an estimate.
    A duration that was not recorded is replaced by its estimate with a sign.
    """
    columns, values = rows
    if form == "json":
        write_json(sys.stdout, columns, values)
    elif form == "csv":
        write_csv(sys.stdout, columns, values)
    else:
        positions = [columns.index(name) for name in shown]
        cells = [[readable(columns[at], row[at]) for at in positions] for row in values]
        if not set(columns).isdisjoint(ESTIMATES.values()):
            _add_estimates(cells, as_dicts(rows), shown)
        if "cost_status" in columns:
            _add_signs(cells, as_dicts(rows), shown)
        show_table([heading(name) for name in shown], cells, keys=shown, ids=_short_ids())


def _add_estimates(
    cells: list[list[Any]], rows: Sequence[Mapping[str, Any]], shown: Sequence[str]
) -> None:
    for cell, row in zip(cells, rows, strict=True):
        for place, column in enumerate(shown):
            cell[place] = estimated(column, cell[place], row) or cell[place]


def _add_signs(
    cells: list[list[Any]], rows: Sequence[Mapping[str, Any]], shown: Sequence[str]
) -> None:
    """Put the sign of a lower bound or an estimate before costs, and before output tokens of cut responses."""
    for cell, row in zip(cells, rows, strict=True):
        marks = {} if "cost_status" in shown else COST_SIGNS
        is_low = has_partial_counts(row)
        for place, column in enumerate(shown):
            if column == "cost_usd":
                cell[place] = certain_money(row[column], row["cost_status"], marks)
            elif column == "output_tokens" and is_low and cell[place] is not None:
                cell[place] = f"{COST_SIGNS['lower_bound']}{text(cell[place])}"


INSTANTS = ("started_ns", "ended_ns", "at_ns", "last_activity_ns", "last_given_ns")
"""The columns that contain instants, in nanoseconds since 1970."""


def readable(column: str, value: Any) -> Any:
    """Format a value for display according to its column's name; instants are in the local time zone."""
    if column in INSTANTS:
        return local_instant(value)
    if (words := _WORDS.get(column)) is not None:
        return words.get(value, value)
    return pretty(column, value)


_WORDS = {"cost_status": COST_STATUSES, "part": PARTS_OF_TIME}
"""The columns whose values are shown in words."""


def _remember_ids(store: Store, rows: Rows) -> None:
    """Find the short forms of the session IDs in rows, which tables on a terminal show."""
    context = click.get_current_context(silent=True)
    if context is None or not sys.stdout.isatty() or "session_id" not in rows[0]:
        return
    from agentobs.store.session_lookup import shortest_prefixes

    at = rows[0].index("session_id")
    ids = {str(row[at]) for row in rows[1] if row[at] is not None}
    context.meta.setdefault(_IDS, {}).update(shortest_prefixes(store, ids))


def _short_ids() -> dict[str, str]:
    context = click.get_current_context(silent=True)
    return context.meta.get(_IDS, {}) if context else {}


_SHORT_HEADINGS = {
    "input tokens": "input",
    "output tokens": "output",
    "cache read tokens": "cache read",
    "cache write tokens": "cache write",
    "cache write 5m tokens": "write 5m",
    "cache write 1h tokens": "write 1h",
    "cache write 5m": "$ 5m",
    "cache write 1h": "$ 1h",
    "cache read": "$ read",
    "compaction": "$ compactions",
    "extra": "extra cost",
    "wasted": "cache waste",
    "cost status": "status",
    "tool use count": "calls",
    "first chunk": "1st chunk",
    "lower bound calls": "lower bound",
    "exact calls": "exact",
    "estimated calls": "estimated",
    "unpriced calls": "unpriced",
    "not exact calls": "not exact",
    "stored not exact calls": "not exact",
    "what if": "what-if",
    "what if not exact calls": "what-if not exact",
    "day": "day (UTC)",
    "at": "sent",
    "timing source": "source",
    "person": "user wait",
    "own": PARTS_OF_TIME["own"],
    "retry wait": PARTS_OF_TIME["retry_wait"],
    "better": "cheaper lifetime",
    "hour": "hour (UTC)",
    "limit name": "limit",
    "limit value": "per minute",
    "lowest ratio": "headroom",
}


def heading(column: str) -> str:
    """Return the heading of a column in a table."""
    plain = column.removesuffix("_ns").removesuffix("_usd").replace("_", " ")
    full = f"$ {plain}" if column.endswith("_usd") and plain in ("input", "output") else plain
    short = _SHORT_HEADINGS.get(full, full)
    return f"{short} ({zone_name()})" if column in INSTANTS else short
