"""Commands that export recorded data in the formats of other tools."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentobs.cli.run import PROFILES
from agentobs.cli.terminal.home_option import home_option
from agentobs.cli.terminal.instants import WHEN
from agentobs.cli.terminal.progress_line import Progress, Spinner
from agentobs.errors import UsageError
from agentobs.records.display import printable, text

if TYPE_CHECKING:
    from exporters.flame_graphs import Of, Profile


def _flame_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of flame graphs."""
    for add in (
        click.argument("sessions", nargs=-1, required=True, metavar="SESSION..."),
        click.option(
            "--of",
            type=click.Choice(["time", "cost"]),
            default="time",
            show_default=True,
            help="What the width of a frame represents: time per lane, or cost.",
        ),
        click.option(
            "-o",
            "--output",
            type=click.Path(path_type=Path),
            required=True,
            help="The file to write.",
        ),
        click.option("--force", is_flag=True, help="Replace an existing file."),
        click.pass_context,
    ):
        command = add(command)
    return command


class _Exports(click.Group):
    """A group with one subcommand per format; any other word is an argument of `rows`: a query, table or view."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = ["rows", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_Exports)
def export() -> None:
    """Export recorded data for other tools.

    `export NAME` is short for `export rows NAME`, unless NAME is a format.
    """


@export.command()
@click.argument("what", metavar="QUERY_OR_TABLE")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    help="The file; its suffix determines the format: .parquet, .csv, .jsonl or .arrows.",
)
@click.option(
    "--param",
    "given",
    multiple=True,
    metavar="NAME=VALUE",
    help="A parameter of a named query. May be repeated.",
)
@click.option("--force", is_flag=True, help="Replace an existing file.")
@click.pass_context
def rows(
    context: click.Context, what: str, output: Path, given: tuple[str, ...], force: bool
) -> None:
    """Write the rows of a table, view or named query to a file.

    QUERY_OR_TABLE is the name of a table, a view or a named query. The rows include running sessions, and only you can
    read the file. `agentobs export NAME` is short for `agentobs export rows NAME`.
    """
    from agentobs.store.backend import open_store
    from agentobs.store.session_lookup import as_stored
    from exporters.row_files import write_file

    with Spinner("writing rows"), open_store(home_option(context), unsafe=True) as store:
        statement = store.statement(what)
        parameters = _parameters(given, statement.parameters)
        if given:
            parameters = as_stored(store, parameters, store.home.key())
        count = write_file(store, statement, parameters, output.absolute(), force=force)
    click.echo(f"{count} rows: {output}")


@export.command()
@_flame_options
def speedscope(
    context: click.Context, sessions: tuple[str, ...], of: Of, output: Path, force: bool
) -> None:
    """Write flame graphs of sessions for speedscope.app.

    A flame graph shows time or cost. The site speedscope.app keeps data in the browser. SESSION is the ID of a session,
    the start or end of the ID (4 characters or more), or its name.
    """
    from exporters import flame_graphs

    _write_flames(context, sessions, of, output, force, flame_graphs.speedscope)


@export.command()
@_flame_options
def folded(
    context: click.Context, sessions: tuple[str, ...], of: Of, output: Path, force: bool
) -> None:
    """Write flame graphs of sessions as folded stacks.

    Each line is a stack with its time or cost: `frame;frame weight`. SESSION is the ID of a session, the start or end
    of the ID (4 characters or more), or its name.
    """
    from exporters import flame_graphs

    _write_flames(context, sessions, of, output, force, flame_graphs.folded)


@export.command()
@click.argument("sessions", nargs=-1, required=True, metavar="SESSION...")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    help="The directory to write to.",
)
@click.option("--force", is_flag=True, help="Replace existing files.")
@click.pass_context
def perfetto(context: click.Context, sessions: tuple[str, ...], output: Path, force: bool) -> None:
    """Write a Perfetto trace for each session.

    A trace is the same as if the session had been traced live. View it in ui.perfetto.dev, which keeps data in the
    browser. SESSION is the ID of a session, the start or end of the ID (4 characters or more), or its name.
    """
    from agentobs.cli.terminal.query_output import open_store, session_of
    from exporters.perfetto import write_traces

    with open_store(context) as store:
        session_ids = [session_of(store, each) for each in sessions]
        failed: list[UsageError] = []
        for session_id in dict.fromkeys(session_ids):
            try:
                with Spinner("writing the trace"):
                    paths = write_traces(store, [session_id], output.absolute(), force=force)
            except UsageError as error:
                failed.append(error)
                continue
            for path in paths:
                click.echo(f"wrote  {path}")
    _end_with(failed)


@export.command()
@click.option(
    "--since", type=WHEN, help="Only sessions that started at or after this time, such as 7d."
)
@click.option("--session", "sessions", multiple=True, help="Only this session. May be repeated.")
@click.option(
    "--endpoint",
    metavar="URL",
    help="URL of the collector. Default: localhost, with the standard port of the protocol.",
)
@click.option(
    "--protocol",
    type=click.Choice(["http/protobuf", "http/json", "grpc"]),
    default="http/protobuf",
    show_default=True,
    help="Wire protocol.",
)
@click.option(
    "--profile",
    type=click.Choice(PROFILES),
    default=PROFILES[0],
    show_default=True,
    help="Semantic-convention profile; see docs/exporting.md.",
)
@click.option("--beta", is_flag=True, help="Also send hook spans and additional attributes.")
@click.option(
    "--headers-env",
    metavar="VARIABLE",
    help="Environment variable that holds the auth headers, as name=value,name=value.",
)
@click.option("--certificate", metavar="FILE", help="A PEM file of trusted certificates.")
@click.option("--service", default="agentobs", show_default=True, help="Name of the service.")
@click.option(
    "--signal",
    "signals",
    multiple=True,
    type=click.Choice(["traces", "logs", "metrics"]),
    help="Only this signal. May be repeated. Default: all three. Use `--signal traces` for a "
    "collector that accepts only traces, such as Phoenix.",
)
@click.option(
    "--as",
    "name",
    metavar="NAME",
    help="Name under which export progress for this collector is stored.",
)
@click.option("--again", is_flag=True, help="Resend data that was already sent.")
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
    """Send recorded sessions to an OTLP collector, with their original IDs and times.

    Sends all data that the collector has not received yet. Exits with 1 if the collector did not accept everything.
    """
    from agentobs.cli.terminal.query_output import session_of
    from agentobs.recording.journal.home import existing_home
    from agentobs.store.backend import open_store
    from exporters.conventions.semconv import profile_named
    from exporters.otlp import headers_of, sending

    home = existing_home(home_option(context))
    with (
        sending(endpoint, protocol, headers_of(headers_env), certificate) as collector,
        open_store(home) as store,
        Spinner("sending") as spinner,
    ):
        from exporters.otlp.backfill import send_recorded
        from exporters.otlp.outbox import SIGNALS

        report = send_recorded(
            store,
            collector.send,
            profile_named(profile, is_beta=beta),
            collector.named(name),
            since_ns=since,
            session_ids=[session_of(store, each) for each in sessions],
            signals=signals or SIGNALS,
            service=service,
            resend=again,
            report_wait=lambda wait: spinner.show(printable(wait)),
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

    with open_store(context) as store:
        session_ids = [session_of(store, each) for each in sessions]
        profiles: list[Profile] = []
        failed: list[UsageError] = []
        chosen = list(dict.fromkeys(session_ids))
        with Progress("sessions read") as progress:
            for number, session_id in enumerate(chosen):
                progress(number, len(chosen))
                try:
                    profiles += profiles_of(store, [session_id], of)
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
    """Report the sessions that could not be exported; the last failure becomes the error of the command.

    Raises:
        UsageError: at least one session could not be exported.
    """
    for error in failed[:-1]:
        click.echo(f"error: {printable(str(error))}", err=True)
    if failed:
        raise failed[-1]


def _usd(picodollars: int) -> str:
    from decimal import Decimal

    return text(Decimal(picodollars).scaleb(-12))


def _parameters(given: tuple[str, ...], known: frozenset[str]) -> dict[str, object]:
    """Return the value of each parameter of a query; None for parameters that were not passed."""
    from agentobs.cli.inspection.sql import parse_value

    parameters: dict[str, object] = dict.fromkeys(known)
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or name not in known:
            raise UsageError(
                f"unknown parameter of the query: {name}",
                where="--param",
                todo=(
                    f"It has the parameters {', '.join(sorted(known)) or '(none)'}; pass each as "
                    "NAME=VALUE"
                ),
            )
        parameters[name] = parse_value(value)
    return parameters
