"""The command `sql`: a query runs in a worker process with limits, or in this process with `--unsafe`."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

from agentobs.cli.terminal.home_option import home_option
from agentobs.errors import AgentobsError, UsageError

if TYPE_CHECKING:
    from agentobs.cli.terminal.query_output import Form
    from agentobs.recording.journal.home import Home

ROWS = 10_000
"""The default maximum number of printed rows. Our choice: more than a user reads."""
UNSAFE = (
    "unsafe: no limits; the query can access files, the network, extensions and "
    "settings; the store is read-only"
)


def _parameters(
    context: click.Context, option: click.Parameter, given: tuple[str, ...]
) -> dict[str, Any]:
    """Parse `--param` options into values by name. Valid JSON keeps its type; any other value is text."""
    parameters: dict[str, Any] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise click.BadParameter("expected NAME=VALUE, as in --param turns=3", context, option)
        if name in parameters:
            raise click.BadParameter(f"{name} was passed twice", context, option)
        parameters[name] = parse_value(value)
    return parameters


def parse_value(text: str) -> Any:
    """Parse the value of a parameter: `3`, `0.25`, `true`, `null`, `["a", "b"]`. A value that is not JSON is text."""
    from decimal import Decimal

    try:
        return json.loads(text, parse_float=Decimal, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return text


def _refuse(text: str) -> None:
    raise ValueError(text)  # NaN and Infinity are not JSON


def _bytes(context: click.Context, option: click.Parameter, given: str | None) -> int | None:
    """Parse a size such as `512MB`, `2GB` or plain digits into bytes; K, M, G and T are powers of 1,024."""
    if given is None:
        return None
    found = re.fullmatch(r"(\d{1,15})\s*([KMGT]?)(?:I?B)?", given.strip().upper())
    if not found or not int(found[1]):
        raise click.BadParameter("expected a size, such as 512MB or 2GB", context, option)
    return int(found[1]) << 10 * " KMGT".index(found[2] or " ")


def limit_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that set limits."""
    for option in (
        click.option(
            "--max-bytes",
            metavar="SIZE",
            callback=_bytes,
            help="Maximum size of the result. [default: 128MB]",
        ),
        click.option(
            "--max-columns",
            type=click.IntRange(min=1),
            help="Maximum number of columns. [default: 1000]",
        ),
        click.option(
            "--max-rows",
            type=click.IntRange(min=1),
            help=f"Maximum number of rows. [default: {ROWS}]",
        ),
        click.option(
            "--memory",
            metavar="SIZE",
            callback=_bytes,
            help="Memory limit of the query, in addition to the memory that the open store uses. "
            "[default: 1GB]",
        ),
        click.option(
            "--timeout",
            type=float,
            metavar="SECONDS",
            help="Time limit of the query. [default: 30]",
        ),
    ):
        command = option(command)
    return command


def form_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--json` and `--csv`, without importing the modules that print."""
    for option in (
        click.option("--table", "form", flag_value="table", default="table", hidden=True),
        click.option("--csv", "form", flag_value="csv", help="Print CSV."),
        click.option("--json", "form", flag_value="json", help="Print JSON, one object per line."),
    ):
        command = option(command)
    return command


@click.command()
@click.argument("query")
@click.option(
    "--param",
    "parameters",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_parameters,
    help="The value of $NAME in the query: text, or JSON for numbers and lists. May be repeated.",
)
@form_options
@limit_options
@click.option(
    "--unsafe",
    is_flag=True,
    help=(
        "Run the query in this process, without limits and with access to files. Only for "
        "queries that you trust."
    ),
)
@click.pass_context
def sql(
    context: click.Context,
    /,
    query: str,
    parameters: dict[str, Any],
    form: Form,
    unsafe: bool,
    **limits: Any,
) -> None:
    """Run a read-only SQL query on the store.

    QUERY is one SELECT over the tables and views of docs/tables.md, which include running sessions.
    """
    from agentobs.recording.journal.home import existing_home

    home = existing_home(home_option(context))
    parameters = _as_stored(home, parameters)
    chosen_limits = {name: value for name, value in limits.items() if value is not None}
    if unsafe and chosen_limits:
        raise UsageError(
            "--unsafe cannot be combined with limits",
            where=f"--{next(iter(chosen_limits)).replace('_', '-')}",
            todo="Leave out --unsafe or the limits",
        )
    try:
        if unsafe:
            _run_here(home, query, parameters, form)
        else:
            _run_in_worker(home, query, parameters, form, chosen_limits)
    except AgentobsError as error:
        raise _printable(error) from error


def _as_stored(home: Home, parameters: dict[str, Any]) -> dict[str, Any]:
    """Return parameters with names, tags and reasons replaced by their digests, as the facts store them."""
    if not any(isinstance(each, str) for each in parameters.values()):
        return parameters
    from agentobs.store.backend import open_store
    from agentobs.store.session_lookup import as_stored

    with open_store(home) as store:
        return as_stored(store, parameters, home.key())


_LIMIT_FIELDS = {
    "timeout": "timeout_seconds",
    "memory": "memory_bytes",
    "max_rows": "rows",
    "max_columns": "columns",
    "max_bytes": "answer_bytes",
}
"""The field of `Limits` that each option sets."""


def _run_in_worker(
    home: Home, query: str, parameters: dict[str, Any], form: Form, chosen_limits: dict[str, Any]
) -> None:
    from agentobs.store.maintenance import Limits, Worker

    limits = Limits(
        **{"rows": ROWS} | {_LIMIT_FIELDS[name]: value for name, value in chosen_limits.items()}
    )
    with Worker(home, limits) as worker:
        from agentobs.cli.terminal.progress_line import Spinner

        _import_printing(form)  # the worker opens the store meanwhile
        with Spinner("running the query"):
            result = worker.run(query, parameters or None)
        _print(result.columns, result.rows, form)


def _run_here(home: Home, query: str, parameters: dict[str, Any], form: Form) -> None:
    """Run a query without limits; objects that it creates in the connection are discarded."""
    from agentobs.store.backend import open_store
    from agentobs.store.port import QueryError

    click.echo(UNSAFE, err=True)
    with open_store(home, unsafe=True) as store:
        try:
            result = store.sql(query, parameters)
            _print(result.columns, result.rows, form)
        except QueryError as error:
            todo = "docs/tables.md lists all columns"
            raise UsageError(error.found, where="sql", todo=todo) from error


def _import_printing(form: Form) -> None:
    if form == "table":
        import agentobs.cli.terminal.tables  # noqa: F401
    else:
        import exporters.row_text  # noqa: F401


def _print(columns: list[str], rows: Iterable[tuple[Any, ...]], form: Form) -> None:
    """Print rows; JSON and CSV rows are printed as they arrive. Rows that arrived before an error are also printed."""
    if form == "json":
        from exporters.row_text import write_json

        write_json(sys.stdout, columns, rows)
    elif form == "csv":
        from exporters.row_text import write_csv

        write_csv(sys.stdout, columns, rows)
    else:
        _print_table(columns, rows)


def _print_table(columns: list[str], rows: Iterable[tuple[Any, ...]]) -> None:
    from agentobs.cli.terminal.tables import show_table

    received: list[tuple[Any, ...]] = []
    try:
        received.extend(rows)
    except AgentobsError:
        if received:
            show_table(columns, received, whole=True)
        raise
    show_table(columns, received, whole=True)


def _printable(error: AgentobsError) -> AgentobsError:
    """Return the error with control characters escaped, because its text may contain data."""
    from agentobs.records.display import printable

    escaped = {"where": printable(error.where), "todo": printable(error.todo)}
    return type(error)(printable(error.found), **escaped)
