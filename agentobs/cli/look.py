"""Commands that answer questions from the store: sessions, show, cost, sql."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import click

from agentobs.cli import home_option
from agentobs.cli.tables import instant, money, seconds, show_table, text
from agentobs.errors import UsageError
from exporters.tabular import write_csv, write_json

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

Form = Literal["table", "json", "csv"]
Rows = tuple[list[str], list[tuple[Any, ...]]]
"""Column names, and rows."""


def _form(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--json` and `--csv`."""
    command = click.option("--csv", "form", flag_value="csv", help="Print CSV.")(command)
    command = click.option(
        "--json", "form", flag_value="json", help="Print JSON, one object a line."
    )(command)
    return click.option("--table", "form", flag_value="table", default="table", hidden=True)(
        command
    )


@click.command(help="List recorded sessions, the newest first.")
@click.option("--failed", is_flag=True, help="Only sessions that failed or crashed.")
@click.option(
    "--limit", type=click.IntRange(min=1), default=20, show_default=True, help="How many at most."
)
@_form
@click.pass_context
def sessions(context: click.Context, failed: bool, limit: int, form: Form) -> None:
    """List sessions."""
    with _store(context) as connection:
        _print(_rows(connection, "sessions", failed=failed or None, limit=limit), _SESSIONS, form)


@click.command(help="Show one session: turns, tools, money, where the time went.")
@click.argument("session")
@click.option(
    "--content", is_flag=True, help="Show what was said, too. It may hold what users typed."
)
@click.pass_context
def show(context: click.Context, session: str, content: bool) -> None:
    """Show SESSION: its id, an end of it of at least 4 characters, or its name."""
    from agentobs.recording.home import existing_home
    from agentobs.store.database import find_session, select

    key = existing_home(home_option(context)).key()
    with _store(context) as connection:
        session_id = find_session(connection, session, key=key)
        one = select(connection, "SELECT * FROM sessions WHERE session_id = ?", [session_id])
        _print_facts(_fetched(one))
        _print(_rows(connection, "session_turns", session_id=session_id), _TURNS, "table")
        _print(_timeline(connection, session_id), _TIMELINE, "table")
    if content:
        _show_content(context, session_id)


@click.command(help="Show what was spent, by model, session or day.")
@click.option(
    "--by", type=click.Choice(["model", "session", "day"]), default="model", show_default=True
)
@click.option(
    "--detail", is_flag=True, help="Each class of tokens with its money, cache writes apart."
)
@click.option(
    "--figure", type=click.Path(dir_okay=False), help="By model: write bars as one HTML file, too."
)
@_form
@click.pass_context
def cost(context: click.Context, by: str, detail: bool, figure: str | None, form: Form) -> None:
    """Show money and tokens in four classes."""
    if figure and by != "model":
        raise UsageError("--figure goes with --by model")
    with _store(context) as connection:
        rows = _rows(connection, f"cost_by_{by}")
    _print(rows, _DETAIL[by] if detail else _COST[by], form)
    if figure:
        _draw(rows, figure)


@click.command(help="Ask the store in SQL, read-only.")
@click.argument("query")
@_form
@click.pass_context
def sql(context: click.Context, query: str, form: Form) -> None:
    """Run one SELECT over the tables and views of docs/tables.md, live recordings included."""
    import duckdb

    from agentobs.store.database import select

    with _store(context) as connection:
        try:
            columns, rows = _fetched(select(connection, query))
        except duckdb.Error as error:
            raise UsageError(
                str(error).splitlines()[0], where="sql", todo="docs/tables.md names all columns"
            ) from error
    if form == "table":
        show_table(columns, rows)
    else:
        _print((columns, rows), columns, form)


def _draw(rows: Rows, file: str) -> None:
    try:
        from dashboards.figures import cost_by_model
    except ImportError as error:
        raise UsageError(
            "figures need plotly", where="--figure", todo="pip install 'agentobs-kit[dashboards]'"
        ) from error
    columns, values = rows
    drawn = cost_by_model([dict(zip(columns, row, strict=True)) for row in values])
    try:
        drawn.write_html(file, include_plotlyjs=True)
    except OSError as error:
        raise UsageError(f"cannot write: {error.strerror}", where=file) from error
    click.echo(f"wrote {file}", err=True)


_SESSIONS = (
    "session_id", "name", "status", "reason", "started_ns", "duration_ns", "turns", "tool_calls",
    "input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "cost_usd",
)  # fmt: skip
_TURNS = (
    "lane", "turn", "attempt", "duration_ns", "first_chunk_ns", "stop_reason", "tool_use_count",
    "tool_errors", "tools_ns", "input_tokens", "output_tokens", "cache_read_tokens",
    "cache_write_tokens", "cost_usd",
)  # fmt: skip
_TIMELINE = ("after_ns", "what", "label", "duration_ns", "outcome", "error_type")
_CLASSES = ("calls", "input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
_CERTAINTY = ("cost_usd", "exact_calls", "lower_bound_calls", "estimated_calls", "unpriced_calls")
_COST = {
    "model": ("model", *_CLASSES, *_CERTAINTY),
    "session": ("session_id", "name", *_CLASSES, *_CERTAINTY),
    "day": ("day", *_CLASSES, *_CERTAINTY),
}
_PARTS = (
    "input_tokens", "input_usd", "output_tokens", "output_usd", "cache_read_tokens",
    "cache_read_usd", "cache_write_5m_tokens", "cache_write_5m_usd", "cache_write_1h_tokens",
    "cache_write_1h_usd", "server_tools_usd", "cost_usd",
)  # fmt: skip
_DETAIL = {
    "model": ("model", *_PARTS),
    "session": ("session_id", "name", *_PARTS),
    "day": ("day", *_PARTS),
}
"""The columns that each command shows, of those that its query gives."""


@contextmanager
def _store(context: click.Context) -> Iterator[DuckDBPyConnection]:
    from agentobs.recording.home import existing_home
    from agentobs.store.database import connect

    with connect(existing_home(home_option(context))) as connection:
        yield connection


def _rows(connection: DuckDBPyConnection, name: str, **parameters: Any) -> Rows:
    from agentobs.store.database import named

    return _fetched(named(connection, name, **parameters))


def _fetched(answered: DuckDBPyConnection) -> Rows:
    columns = [str(column[0]) for column in answered.description or []]
    return columns, [tuple(row) for row in answered.fetchall()]


def _timeline(connection: DuckDBPyConnection, session_id: str) -> Rows:
    """Return a session's timeline with times after its start and names indented by depth."""
    columns, rows = _rows(connection, "session_timeline", session_id=session_id)
    listed = [dict(zip(columns, row, strict=True)) for row in rows]
    first = min((row["started_ns"] for row in listed), default=0)
    shown = [
        (
            row["started_ns"] - first,
            f"{'  ' * row['depth']}{_name(row)}",
            None if row["kind"] == "tool_call" else row["label"],
            row["duration_ns"],
            row["outcome"],
            row["error_type"],
        )
        for row in listed
        if _is_told(row)
    ]
    return list(_TIMELINE), shown


_SAID = ("steering", "follow_up", "abort")
"""What came from outside and is shown. Of consent the decision tells more; checks and paths are the loop's own."""


def _is_told(row: dict[str, Any]) -> bool:
    """Return whether a row of the timeline is for people."""
    match row["kind"]:
        case "span":
            return bool(row["name"] != "tool")  # the tool call itself tells more
        case "permission":
            return row["outcome"] != "allow" or row["duration_ns"] is not None
        case "world":
            return row["name"] in _SAID
        case _:
            return True


def _name(row: dict[str, Any]) -> str:
    prefix = {"tool_call": "tool ", "permission": "permission "}.get(row["kind"], "")
    return f"{prefix}{row['name']}"


def _print(rows: Rows, shown: Sequence[str], form: Form) -> None:
    """Print rows: machines get every column as it is, people those that are shown, made readable."""
    columns, values = rows
    if form == "json":
        write_json(sys.stdout, columns, values)
    elif form == "csv":
        write_csv(sys.stdout, columns, values)
    else:
        places = [columns.index(name) for name in shown]
        pretty = [[_pretty(columns[at], row[at]) for at in places] for row in values]
        show_table([_heading(name) for name in shown], pretty)


def _print_facts(rows: Rows) -> None:
    """Print one row, a fact a line."""
    columns, [values] = rows
    for column, value in zip(columns, values, strict=True):
        if value is not None and not column.endswith("_at"):
            click.echo(f"{_heading(column):<20} {text(_pretty(column, value))}")
    click.echo()


def _pretty(column: str, value: Any) -> Any:
    if column in ("started_ns", "ended_ns"):
        return instant(value)
    if column.endswith("_ns"):
        return seconds(value)
    if column.endswith("_usd"):
        return money(value)
    return value


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
    "tool use count": "calls",
    "first chunk": "1st chunk",
    "lower bound calls": "lower bound",
    "exact calls": "exact",
    "estimated calls": "estimated",
    "unpriced calls": "unpriced",
}


def _heading(column: str) -> str:
    plain = column.removesuffix("_ns").removesuffix("_usd").replace("_", " ")
    money_of = f"$ {plain}" if column.endswith("_usd") and plain in ("input", "output") else plain
    return _SHORT.get(money_of, money_of)


def _show_content(context: click.Context, session_id: str) -> None:
    from agentobs.cli.again import recorded
    from replay.trajectory import trajectory

    click.echo()
    click.echo(trajectory(recorded(home_option(context), session_id).exchanges), nl=False)
