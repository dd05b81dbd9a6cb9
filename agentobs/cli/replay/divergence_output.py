"""Functions that print a divergence, or write accepted requests into the fixture."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from replay import Divergence, Replayer

COLUMNS = (80, 120)
"""The minimum and maximum width of a report: narrower lines would break, wider lines are hard to read. Our choice."""


def print_divergence(
    divergence: Divergence, *, as_json: bool = False, explain: bool = False
) -> None:
    """Print a divergence as JSON or as text, with its causal chain if requested."""
    if as_json:
        click.echo(divergence.json())
        return
    click.echo(divergence.text(_columns()))
    if explain:
        click.echo(divergence.explanation(_columns()))


def offer(replayed: Replayer, *, yes: bool) -> None:
    """Show the requests and the result that are accepted, and write them into the fixture after confirmation."""
    accepted = replayed.accepted
    if not accepted:
        click.echo("no differences: the fixture is unchanged")
        return
    for each in accepted:
        click.echo(each.text(_columns()))
    requests = sum(each.request is not None for each in accepted)
    parts = [f"{requests} request{'s' * (requests != 1)}"] if requests else []
    parts += ["the result"] if len(accepted) > requests else []
    changes = f"{' and '.join(parts)} to {replayed.fixture.path}"
    if not yes and not sys.stdin.isatty():
        click.echo(f"not written: {changes}; pass --yes to write without confirmation")
        return
    if yes or click.confirm(f"write {changes}?"):
        replayed.accept()
        click.echo(f"wrote  {changes}")


def _columns() -> int:
    """Return the width of a report: the terminal's width within bounds, or the default without a terminal."""
    from replay.divergence.rendering import COLUMNS as default_columns

    if not sys.stdout.isatty():
        return default_columns
    return min(max(shutil.get_terminal_size().columns, COLUMNS[0]), COLUMNS[1])
