"""Commands that keep the store: ingest and verify."""

from __future__ import annotations

import sys

import click

from agentobs.cli import home_option


@click.command(help="Publish what was recorded into the DuckDB file.")
@click.pass_context
def ingest(context: click.Context) -> None:
    """Bring new records into the store; any number of times counts once."""
    from agentobs.recording.home import existing_home
    from agentobs.store.ingest import ingest as publish

    home = existing_home(home_option(context))
    report = publish(home)
    for line in report.lines():
        click.echo(line)


@click.command(help="Read everything back and report what is damaged.")
@click.pass_context
def verify(context: click.Context) -> None:
    """Check every record, every body and the published file. Exits with 1 where something is damaged."""
    from agentobs.recording.home import existing_home
    from agentobs.store.verify import verify as check

    report = check(existing_home(home_option(context)))
    for line in report.lines():
        click.echo(line)
    sys.exit(0 if report.ok else 1)
