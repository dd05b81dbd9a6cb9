"""Commands that keep the store: ingest, verify, prune, repair."""

from __future__ import annotations

import re
import sys
from typing import Any

import click

from agentobs.cli.terminal.home_option import home_option
from agentobs.cli.terminal.instants import WHEN
from agentobs.errors import UsageError

_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}


class Size(click.ParamType[int]):
    """A size in bytes, as people type it: `5GB`."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the size that was typed."""
        if isinstance(value, int):
            return value
        found = re.fullmatch(r"(\d{1,12})\s*([kmgt]?b?)", str(value).strip().lower())
        if found is None or found[2] not in _UNITS:
            self.fail(f"{value!r} is no size: say 500MB, 5GB or a number of bytes", param, ctx)
        return int(found[1]) * _UNITS[found[2]]


SIZE = Size()


@click.command(help="Publish what was recorded into the DuckDB file.")
@click.pass_context
def ingest(context: click.Context) -> None:
    """Bring new records into the store; any number of times counts once."""
    from agentobs.recording.journal.home import existing_home
    from agentobs.store.disk_usage import warning
    from agentobs.store.duckdb.ingest import ingest as publish

    home = existing_home(home_option(context))
    report = publish(home)
    for line in report.lines():
        click.echo(line)
    if told := warning(home):
        click.echo(told, err=True)


@click.command(help="Read everything back and report what is damaged.")
@click.pass_context
def verify(context: click.Context) -> None:
    """Check every record, every body and the published file. Exits with 1 where something is damaged."""
    from agentobs.recording.journal.home import existing_home
    from agentobs.store.duckdb.verification import verify as check

    report = check(existing_home(home_option(context)))
    for line in report.lines():
        click.echo(line)
    sys.exit(0 if report.ok else 1)


@click.command(help="Delete old sessions, or only what was said in them.")
@click.option(
    "--older-than", "before_ns", type=WHEN, help="All that ended before: 30d, 2026-11-01."
)
@click.option("--keep-bytes", type=SIZE, help="The oldest, until the home is no larger: 5GB.")
@click.option("--session", "named", multiple=True, help="This one; may be given several times.")
@click.option("--content-only", is_flag=True, help="Keep the facts: costs, times, outcomes.")
@click.option("--dry-run", is_flag=True, help="Only say what would be deleted.")
@click.pass_context
def prune(
    context: click.Context,
    before_ns: int | None,
    keep_bytes: int | None,
    named: tuple[str, ...],
    content_only: bool,
    dry_run: bool,
) -> None:
    """Delete sessions for good. Those that still run are left alone; fixtures that were frozen stay."""
    from agentobs.recording.journal.home import existing_home
    from agentobs.store.duckdb.connection import connect, find_session
    from agentobs.store.duckdb.retention import prune as delete

    if (before_ns is not None) + (keep_bytes is not None) + bool(named) != 1:
        raise UsageError(
            "it is not said which sessions",
            where="prune",
            todo="Say one of --older-than 30d, --keep-bytes 5GB and --session ID",
        )
    home = existing_home(home_option(context))
    with connect(home, ingest=False) as connection:
        ids = [find_session(connection, text, key=home.key()) for text in named]
    report = delete(
        home,
        sessions=ids,
        before_ns=before_ns,
        keep_bytes=keep_bytes,
        what="content" if content_only else "all",
        dry_run=dry_run,
    )
    for line in report.lines():
        click.echo(line)
    if named and report.running:
        sys.exit(1)


@click.command(help="Mend what is damaged; what is replaced goes to <home>/damaged/.")
@click.pass_context
def repair(context: click.Context) -> None:
    """Cut torn ends, take out what does not read back, and build the store anew; nothing is destroyed."""
    from agentobs.recording.journal.home import existing_home
    from agentobs.store.duckdb.repair import repair as mend

    report = mend(existing_home(home_option(context)))
    for line in report.lines():
        click.echo(line)
    sys.exit(1 if report.left else 0)
