"""Commands that inspect the journal: `journal cat`."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agentobs.cli.terminal.home_option import home_option
from agentobs.errors import UsageError
from agentobs.records.display import printable

if TYPE_CHECKING:
    from agentobs.recording.journal.segments import Damage


@click.group()
def journal() -> None:
    """Print the records of a segment."""


@journal.command()
@click.argument("segment")
@click.option(
    "--content", is_flag=True, help="Print the content of the segment instead of its facts."
)
@click.option("--kind", help="Only records of this kind.")
@click.option(
    "--from",
    "first",
    type=click.IntRange(min=1),
    default=1,
    help="Start at the record with this number.",
)
@click.pass_context
def cat(context: click.Context, segment: str, content: bool, kind: str | None, first: int) -> None:
    """Print the records of SEGMENT: its ID, a prefix or suffix of it, or one of its files.

    Shows the number, kind and JSON of each record, and the damage between records. Exits with 1 if the segment is
    damaged.
    """
    from agentobs.recording.journal.segments import Line, read, tail

    path = _path(context, segment, content)
    is_intact = True
    for item in read(path):
        if not isinstance(item, Line):
            is_intact = False
            click.echo(_damage_text(item))
        elif item.sequence >= first and kind in (None, item.kind):
            text = item.payload.decode("utf-8", "backslashreplace")
            click.echo(f"{item.sequence} {item.kind} {printable(text)}")
    if torn := tail(path):
        is_intact = False
        click.echo(f"!! the last {torn} bytes are not a complete record")
    sys.exit(0 if is_intact else 1)


def _damage_text(damage: Damage) -> str:
    size = damage.end - damage.start
    place = f"{size} bytes at {damage.start}" if size else f"at byte {damage.start}"
    return f"!! {place}: {damage.reason}"


def _path(context: click.Context, segment: str, content: bool) -> Path:
    """Return the path of a file of a segment, without `.zst` even if only the compressed file exists.

    Raises:
        UsageError: no segment matches, or several do.
    """
    from agentobs.recording.journal.home import existing_home
    from agentobs.recording.journal.segments import (
        content_path,
        facts_path,
        file_exists,
        segment_ids,
    )

    named = Path(segment)
    plain = re.fullmatch(r"(.+\.(?:facts|content))(?:\.zst)?", named.name)
    if plain and file_exists(named.with_name(plain[1])):
        return named.with_name(plain[1])
    home = existing_home(home_option(context))
    found = [i for i in segment_ids(home) if i.startswith(segment) or i.endswith(segment)]
    if len(found) != 1:
        raise UsageError(
            f"{len(found) or 'no'} segments match this name",
            where=segment,
            todo=f"Segments are in {home.segments}; pass an ID or the path of a file",
        )
    path = content_path(home, found[0]) if content else facts_path(home, found[0])
    if not file_exists(path):
        raise UsageError(
            "the segment has no content",
            where=found[0],
            todo="Leave out --content to print its facts",
        )
    return path
