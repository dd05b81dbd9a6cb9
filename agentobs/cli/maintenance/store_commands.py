"""Commands that maintain the store: `ingest`, `verify`, `prune`, `repair`."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

import click

from agentobs.cli.terminal.home_option import home_option
from agentobs.cli.terminal.instants import WHEN
from agentobs.cli.terminal.progress_line import Progress, Spinner
from agentobs.errors import UsageError

_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}


if TYPE_CHECKING:
    _Base = click.ParamType[int]
else:
    _Base = click.ParamType  # not generic before click 8.4


class Size(_Base):
    """A size in bytes, such as `5GB`."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse a size."""
        if isinstance(value, int):
            return value
        found = re.fullmatch(r"(\d{1,12})\s*([kmgt]?b?)", str(value).strip().lower())
        if found is None or found[2] not in _UNITS:
            self.fail(f"invalid size: {value!r}. Use 500MB, 5GB or a number of bytes", param, ctx)
        return int(found[1]) * _UNITS[found[2]]


SIZE = Size()


@click.command()
@click.pass_context
def ingest(context: click.Context) -> None:
    """Load new recorded data into the DuckDB file.

    Records that are already in the file are not loaded twice.
    """
    from agentobs.recording.journal.home import existing_home
    from agentobs.store.disk_usage import warning
    from agentobs.store.maintenance import ingest as publish

    home = existing_home(home_option(context))
    with Spinner("loading new records"):
        report = publish(home)
    for line in report.lines():
        click.echo(line)
    if advice := warning(home):
        click.echo(advice, err=True)


@click.command()
@click.pass_context
def verify(context: click.Context) -> None:
    """Read all recorded data back and report damage.

    Checks every record, every body and the DuckDB file. Exits with 1 if anything is damaged.
    """
    from agentobs.recording.journal.home import existing_home
    from agentobs.store.maintenance import verify as check

    with Progress("segments read") as progress:
        report = check(existing_home(home_option(context)), progress=progress)
    for line in report.lines():
        click.echo(line)
    sys.exit(0 if report.ok else 1)


@click.command()
@click.option(
    "--older-than",
    "before_ns",
    type=WHEN,
    help="Delete sessions that ended before this time, such as 30d or 2026-11-01.",
)
@click.option(
    "--keep-bytes",
    type=SIZE,
    help="Delete the oldest sessions until the home is no larger than this, such as 5GB.",
)
@click.option("--session", "named", multiple=True, help="Delete this session. May be repeated.")
@click.option(
    "--content-only",
    is_flag=True,
    help="Delete only the content; keep the facts (costs, times, outcomes).",
)
@click.option("--dry-run", is_flag=True, help="Show what would be deleted, without deleting it.")
@click.pass_context
def prune(
    context: click.Context,
    before_ns: int | None,
    keep_bytes: int | None,
    named: tuple[str, ...],
    content_only: bool,
    dry_run: bool,
) -> None:
    """Delete old sessions, or only their content.

    The deletion is permanent. Running sessions and frozen fixtures are kept.
    """
    from agentobs.effects.mcp.config_copies import remove_leftovers
    from agentobs.recording.journal.home import existing_home
    from agentobs.store.backend import open_store
    from agentobs.store.maintenance import prune as delete
    from agentobs.store.session_lookup import find_session

    if (before_ns is not None) + (keep_bytes is not None) + bool(named) != 1:
        raise UsageError(
            "no sessions selected",
            where="prune",
            todo="Pass --older-than 30d, --keep-bytes 5GB or --session ID",
        )
    home = existing_home(home_option(context))
    with open_store(home, ingest=False) as store:
        ids = [find_session(store, text, key=home.key()) for text in named]
    with Spinner("choosing sessions" if dry_run else "deleting"):
        report = delete(
            home,
            sessions=ids,
            before_ns=before_ns,
            keep_bytes=keep_bytes,
            what="content" if content_only else "all",
            dry_run=dry_run,
        )
    if not dry_run:
        remove_leftovers(home)
    for line in report.lines():
        click.echo(line)
    if named and report.running:
        sys.exit(1)


@click.command()
@click.pass_context
def repair(context: click.Context) -> None:
    """Repair damaged files; replaced files are kept in <home>/damaged/.

    Truncates torn ends, moves unreadable records to a separate file, and rebuilds the store. Nothing is destroyed.
    """
    from agentobs.recording.journal.home import existing_home
    from agentobs.store.maintenance import repair as repair_store

    with Progress("segments checked") as progress:
        report = repair_store(existing_home(home_option(context)), progress=progress)
    for line in report.lines():
        click.echo(line)
    sys.exit(1 if report.unrepaired else 0)
