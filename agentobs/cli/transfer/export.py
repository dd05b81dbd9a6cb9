"""Commands that write what was recorded to files, in the forms of other tools."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentobs.cli.run import PROFILES
from agentobs.cli.terminal.home_option import home_option
from agentobs.cli.terminal.instants import WHEN
from agentobs.errors import UsageError
from agentobs.records.display import printable, text

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

    from exporters.flame_graphs import Of, Profile


def _flame_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add what all flame graphs take."""
    for add in (
        click.argument("sessions", nargs=-1, required=True, metavar="SESSION..."),
        click.option(
            "--of",
            type=click.Choice(["time", "cost"]),
            default="time",
            show_default=True,
            help="What the widths are: where the time of each lane went, or the money.",
        ),
        click.option(
            "-o", "--output", type=click.Path(path_type=Path), required=True, help="The file."
        ),
        click.option("--force", is_flag=True, help="Replace the file where it exists."),
        click.pass_context,
    ):
        command = add(command)
    return command


class _Exports(click.Group):
    """The forms that have a name of their own; any other word is that of a query, a table or a view."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = ["rows", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_Exports, help="Write what was recorded to files for other tools.")
def export() -> None:
    """Write what was recorded to files for other tools; without a form's name the word is that of rows."""


@export.command(help="Write a table, view or named query; `export NAME` says the same.")
@click.argument("what", metavar="QUERY_OR_TABLE")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    help="The file; its ending says the form: .parquet, .csv, .jsonl or .arrows.",
)
@click.option(
    "--param",
    "given",
    multiple=True,
    metavar="NAME=VALUE",
    help="A parameter of a named query; may be given several times.",
)
@click.option("--force", is_flag=True, help="Replace the file where it exists.")
@click.pass_context
def rows(
    context: click.Context, what: str, output: Path, given: tuple[str, ...], force: bool
) -> None:
    """Write rows of the store, what is recorded right now included, to a file that only you can read."""
    from agentobs.recording.journal.home import existing_home
    from agentobs.store.duckdb.connection import connect
    from agentobs.store.named_queries import as_stored
    from exporters.row_files import write_file

    home = existing_home(home_option(context))
    with connect(home, unsafe=True) as connection:
        sql, wanted = _statement(connection, what)
        parameters = _parameters(given, wanted)
        if given:
            parameters = as_stored(connection, parameters, home.key())
        count = write_file(connection, sql, parameters, output.absolute(), force=force)
    click.echo(f"{count} rows: {output}")


@export.command(help="Write flame graphs of SESSIONS for speedscope.app.")
@_flame_options
def speedscope(
    context: click.Context, sessions: tuple[str, ...], of: Of, output: Path, force: bool
) -> None:
    """Write what SESSIONS spent, stack by stack, in speedscope's form; the page reads it and sends it nowhere."""
    from exporters import flame_graphs

    _write_flames(context, sessions, of, output, force, flame_graphs.speedscope)


@export.command(help="Write flame graphs of SESSIONS as folded stacks.")
@_flame_options
def folded(
    context: click.Context, sessions: tuple[str, ...], of: Of, output: Path, force: bool
) -> None:
    """Write what SESSIONS spent, a line a stack: `frame;frame weight`."""
    from exporters import flame_graphs

    _write_flames(context, sessions, of, output, force, flame_graphs.folded)


@export.command(help="Write Perfetto traces of SESSIONS, a file each.")
@click.argument("sessions", nargs=-1, required=True, metavar="SESSION...")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), required=True, help="The directory."
)
@click.option("--force", is_flag=True, help="Replace files where they exist.")
@click.pass_context
def perfetto(context: click.Context, sessions: tuple[str, ...], output: Path, force: bool) -> None:
    """Write SESSIONS as they would have been drawn live, for ui.perfetto.dev, which sends them nowhere."""
    from agentobs.cli.terminal.query_output import open_store, session_of
    from exporters.perfetto import write_traces

    with open_store(context) as connection:
        session_ids = [session_of(context, connection, each) for each in sessions]
        failed: list[UsageError] = []
        for session_id in dict.fromkeys(session_ids):
            try:
                paths = write_traces(connection, [session_id], output.absolute(), force=force)
            except UsageError as error:
                failed.append(error)
                continue
            for path in paths:
                click.echo(f"wrote  {path}")
    _end_with(failed)


@export.command(help="Send recorded sessions to an OTLP collector, with their own ids and times.")
@click.option("--since", type=WHEN, help="Only sessions that began then or later, such as 7d.")
@click.option(
    "--session", "sessions", multiple=True, help="Only this session; may be given several times."
)
@click.option(
    "--endpoint", metavar="URL", help="The collector. Default: this machine, the usual port."
)
@click.option(
    "--protocol",
    type=click.Choice(["http/protobuf", "http/json", "grpc"]),
    default="http/protobuf",
    show_default=True,
    help="How to say it.",
)
@click.option(
    "--profile",
    type=click.Choice(PROFILES),
    default=PROFILES[0],
    show_default=True,
    help="Whose names are spoken, see docs/exporting.md.",
)
@click.option("--beta", is_flag=True, help="With the spans of hooks, and more attributes.")
@click.option(
    "--headers-env",
    metavar="VARIABLE",
    help="A variable of the environment with what it takes to get in: name=value,name=value.",
)
@click.option("--certificate", metavar="FILE", help="A PEM file to trust.")
@click.option("--service", default="agentobs", show_default=True, help="The service's name.")
@click.option(
    "--signal",
    "signals",
    multiple=True,
    type=click.Choice(["traces", "logs", "metrics"]),
    help="Only this signal; may be given several times. Default: all three.",
)
@click.option(
    "--as", "name", metavar="NAME", help="What the collector is called in what is remembered."
)
@click.option("--again", is_flag=True, help="Send also what was sent there before.")
@click.pass_context
def otlp(
    context: click.Context,
    since: int | None,
    sessions: tuple[str, ...],
    endpoint: str | None,
    protocol: Any,
    profile: str,
    beta: bool,
    headers_env: str | None,
    certificate: str | None,
    service: str,
    signals: tuple[Any, ...],
    name: str | None,
    again: bool,
) -> None:
    """Send what the collector has not been sent yet; exits with 1 where not all of it was taken."""
    from agentobs.cli.terminal.query_output import session_of
    from agentobs.recording.journal.home import existing_home
    from agentobs.store.duckdb.connection import connect
    from exporters.conventions.semconv import profile_named
    from exporters.otlp import headers_of, sending

    home = existing_home(home_option(context))
    with (
        sending(endpoint, protocol, headers_of(headers_env), certificate) as to,
        connect(home) as connection,
    ):
        from exporters.otlp.backfill import SIGNALS, send_recorded

        report = send_recorded(
            home,
            connection,
            to.send,
            profile_named(profile, is_beta=beta),
            to.named(name),
            since_ns=since,
            session_ids=[session_of(context, connection, each) for each in sessions],
            signals=signals or SIGNALS,
            service=service,
            again=again,
            told=lambda wait: click.echo(printable(wait), err=True),
        )
    for line in report.lines():
        click.echo(printable(line))
    sys.exit(0 if report.is_complete else 1)


def _write_flames(
    context: click.Context,
    sessions: tuple[str, ...],
    of: Of,
    output: Path,
    force: bool,
    form: Callable[[Sequence[Profile]], str],
) -> None:
    from agentobs.cli.terminal.query_output import open_store, session_of
    from exporters.flame_graphs import profiles_of
    from exporters.new_files import write_text

    with open_store(context) as connection:
        session_ids = [session_of(context, connection, each) for each in sessions]
        profiles: list[Profile] = []
        failed: list[UsageError] = []
        for session_id in dict.fromkeys(session_ids):
            try:
                profiles += profiles_of(connection, [session_id], of)
            except UsageError as error:
                failed.append(error)
    if not profiles:
        _end_with(failed)
    write_text(output.absolute(), form(profiles), force=force)
    for profile in profiles:
        shown = _usd(profile.total) if of == "cost" else f"{profile.total / 1e9:,.3f} s"
        click.echo(f"{shown}  {printable(profile.name)}")
    click.echo(f"wrote  {output}")
    _end_with(failed)


def _end_with(failed: Sequence[UsageError]) -> None:
    """Say what went wrong with some sessions, after the others: the last as the error of the command.

    Raises:
        UsageError: something did.
    """
    for error in failed[:-1]:
        click.echo(f"error: {printable(str(error))}", err=True)
    if failed:
        raise failed[-1]


def _usd(picodollars: int) -> str:
    from decimal import Decimal

    return text(Decimal(picodollars).scaleb(-12))


def _statement(connection: DuckDBPyConnection, what: str) -> tuple[str, set[str]]:
    """Return a statement for a name, and the names of its parameters.

    Raises:
        UsageError: there is no query, table or view of that name.
    """
    from agentobs.store.named_queries import query_names, query_text

    found = connection.execute(_TABLES).fetchall()
    tables = {row[0] for row in found}
    if what in tables:
        return f'SELECT * FROM "{what}"', set()
    if what not in query_names():
        raise UsageError(
            "no query, table or view of that name",
            where=what,
            todo=f"docs/tables.md describes the tables; the queries are {', '.join(query_names())}",
        )
    asked = re.sub(r"(?m)^\s*--.*$", "", query_text(what)).strip().rstrip(";")
    return asked, set(re.findall(r"\$([a-z_]+)", asked))


def _parameters(given: tuple[str, ...], wanted: set[str]) -> dict[str, object]:
    from agentobs.cli.inspection.sql import typed

    found: dict[str, object] = dict.fromkeys(wanted)
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or name not in wanted:
            raise UsageError(
                f"no parameter of the query: {name}",
                where="--param",
                todo=f"It takes {', '.join(sorted(wanted)) or 'none'}, each as NAME=VALUE",
            )
        found[name] = typed(value)
    return found


_TABLES = """
    SELECT table_name FROM duckdb_tables()
    WHERE NOT internal AND schema_name = 'main' AND database_name = current_database()
    UNION
    SELECT view_name FROM duckdb_views()
    WHERE NOT internal AND schema_name = 'main' AND database_name = current_database()
"""
