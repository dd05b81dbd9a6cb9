"""Command-line options of commands that continue a recording live."""

from __future__ import annotations

import click

at_option = click.option(
    "--at",
    "turn",
    type=click.IntRange(min=1),
    required=True,
    metavar="N",
    help="The last turn whose response comes from the recording. Its tools run live.",
)
system_option = click.option(
    "--system", help="The system prompt of the live requests; @FILE reads it from a file."
)

__all__ = ["at_option", "system_option"]
