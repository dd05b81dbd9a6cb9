"""What the command line does where a replay parts from its recording: tell of it, or take what came for right."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from replay import Divergence, Replayer

COLUMNS = (80, 120)
"""The narrowest and the widest report: below, lines are torn; above, they are hard to read. Our choice."""


def tell(divergence: Divergence, *, as_json: bool = False, explain: bool = False) -> None:
    """Print a divergence: as JSON, or for people, with the way back to what it comes from where that is wanted."""
    if as_json:
        click.echo(divergence.json())
        return
    click.echo(divergence.text(_columns()))
    if explain:
        click.echo(divergence.explanation(_columns()))


def offer(replayed: Replayer, *, yes: bool) -> None:
    """Show the requests and the result that are accepted, and write them into the fixture if that is confirmed."""
    accepted = replayed.accepted
    if not accepted:
        click.echo("nothing differs: the fixture stays as it is")
        return
    for each in accepted:
        click.echo(each.text(_columns()))
    requests = sum(each.request is not None for each in accepted)
    parts = [f"{requests} request{'s' * (requests != 1)}"] if requests else []
    parts += ["the result"] if len(accepted) > requests else []
    about = f"{' and '.join(parts)} of {replayed.fixture.path}"
    if not yes and not sys.stdin.isatty():
        click.echo(f"not written: {about}; say --yes to write them")
        return
    if yes or click.confirm(f"write {about}?"):
        replayed.accept()
        click.echo(f"wrote  {about}")


def _columns() -> int:
    """Return how wide a report is: as the terminal, within bounds; where there is none, as it is everywhere else."""
    from replay.divergence.rendering import COLUMNS as usual

    if not sys.stdout.isatty():
        return usual
    return min(max(shutil.get_terminal_size().columns, COLUMNS[0]), COLUMNS[1])
