"""What commands that ask the store share: opening it, and printing rows for people or machines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import click

from agentobs.cli.terminal.home_option import home_option
from agentobs.cli.terminal.tables import show_table
from agentobs.errors import UsageError
from agentobs.records.display import pretty
from exporters.row_text import write_csv, write_json

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

Form = Literal["table", "json", "csv"]
Rows = tuple[list[str], list[tuple[Any, ...]]]
"""Column names, and rows."""


def form_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--json` and `--csv`."""
    command = click.option("--csv", "form", flag_value="csv", help="Print CSV.")(command)
    command = click.option(
        "--json", "form", flag_value="json", help="Print JSON, one object a line."
    )(command)
    return click.option("--table", "form", flag_value="table", default="table", hidden=True)(
        command
    )


@contextmanager
def open_store(context: click.Context) -> Iterator[DuckDBPyConnection]:
    """Connect to the store of the home that was named."""
    from agentobs.recording.journal.home import existing_home
    from agentobs.store.duckdb.connection import connect
    from agentobs.store.label_texts import Texts

    home = existing_home(home_option(context))
    with connect(home) as connection:
        context.meta[_TEXTS] = Texts(connection, home)
        yield connection


_TEXTS = "agentobs texts"
"""The key in the click context of the texts of the open store."""


def in_words(rows: Rows) -> Rows:
    """Return rows with digests of names and reasons replaced by their texts, for display on this machine."""
    context = click.get_current_context(silent=True)
    texts = context.meta.get(_TEXTS) if context else None
    return rows if texts is None else (rows[0], texts.shown(rows[1]))


def session_of(context: click.Context, connection: DuckDBPyConnection, text: str) -> str:
    """Return the id of the session that was named: its id, an end of it, or its name."""
    from agentobs.recording.journal.home import existing_home
    from agentobs.store.duckdb.connection import find_session

    key = existing_home(home_option(context)).key()
    try:
        return find_session(connection, text, key=key)
    except UsageError as error:
        _, [(todo,)] = in_words(([], [(error.todo,)]))
        raise UsageError(error.found, where=error.where, todo=todo) from error


def rows_of(connection: DuckDBPyConnection, name: str, **parameters: Any) -> Rows:
    """Run a named query, with digests of names and reasons replaced by their texts."""
    from agentobs.store.duckdb.connection import named

    return fetched(named(connection, name, **parameters))


def fetched(answered: DuckDBPyConnection) -> Rows:
    """Fetch all rows, with digests of names and reasons replaced by their texts."""
    return in_words(facts_of(answered))


def facts_of(answered: DuckDBPyConnection) -> Rows:
    """Fetch all rows as they are stored, with digests of names and reasons."""
    columns = [str(column[0]) for column in answered.description or []]
    return columns, [tuple(row) for row in answered.fetchall()]


def as_dicts(rows: Rows) -> list[dict[str, Any]]:
    """Return rows with their columns' names."""
    columns, values = rows
    return [dict(zip(columns, row, strict=True)) for row in values]


def print_rows(rows: Rows, shown: Sequence[str], form: Form) -> None:
    """Print rows: machines get every column as it is, people those that are shown, made readable."""
    columns, values = rows
    if form == "json":
        write_json(sys.stdout, columns, values)
    elif form == "csv":
        write_csv(sys.stdout, columns, values)
    else:
        places = [columns.index(name) for name in shown]
        made = [[pretty(columns[at], row[at]) for at in places] for row in values]
        show_table([heading(name) for name in shown], made)


_SHORT = {
    "input tokens": "input",
    "output tokens": "output",
    "cache read tokens": "cache read",
    "cache write tokens": "cache write",
    "cache write 5m tokens": "write 5m",
    "cache write 1h tokens": "write 1h",
    "cache write 5m": "$ 5m",
    "cache write 1h": "$ 1h",
    "cache read": "$ read",
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
    "at": "sent (UTC)",
}


def heading(column: str) -> str:
    """Return a column's name as people read it."""
    plain = column.removesuffix("_ns").removesuffix("_usd").replace("_", " ")
    money_of = f"$ {plain}" if column.endswith("_usd") and plain in ("input", "output") else plain
    return _SHORT.get(money_of, money_of)
