"""Commands on the files of a session: `workspace`, `restore`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agentobs.cli.terminal.home_option import home_option
from agentobs.cli.terminal.query_output import open_store, session_of
from agentobs.errors import UsageError
from agentobs.records.display import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentobs.effects.workspaces.snapshots import Uncaptured
    from agentobs.effects.workspaces.undo import Undo
    from agentobs.store.recorded_workspaces import RecordedState

LISTED = 20
"""The maximum number of files without content that are listed. Our choice."""


@click.command()
@click.argument("session")
@click.option(
    "--at",
    "turn",
    type=click.IntRange(min=1),
    metavar="N",
    help="The files before the tools of this turn ran. Default: the last recorded files.",
)
@click.option("--lane", default="main", show_default=True, help="The lane of the turn.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    metavar="DIR",
    help="A directory that is empty or does not exist.",
)
@click.pass_context
def workspace(
    context: click.Context, session: str, turn: int | None, lane: str, output: Path
) -> None:
    """Restore the files of a session's workspace at a turn into a new directory.

    SESSION is the ID of a session, the start or end of the ID (4 characters or more), or its name. The session must
    have recorded files: `agentobs record --effects files`.

    Contents, symbolic links and executable bits are restored. Empty directories, ignored files and times are not
    recorded.
    """
    from agentobs.effects.workspaces.kept_states import restore_state
    from agentobs.recording.journal.home import existing_home
    from agentobs.store.recorded_workspaces import snapshot_of, state_at

    home = existing_home(home_option(context))
    at = state_at(_states(context, session)[1], turn, lane)
    snapshot = snapshot_of(home, at)
    report = restore_state(home, at.workspace_id, snapshot, output)
    click.echo(f"restored {report.files} files into {printable(str(output))}")
    _print_notes(at)
    _print_uncaptured("not restored", snapshot.uncaptured)


@click.command()
@click.argument("session")
@click.option(
    "--before-turn",
    "turn",
    type=click.IntRange(min=1),
    required=True,
    metavar="N",
    help="Restore files to their state before the tools of this turn ran.",
)
@click.option("--lane", default="main", show_default=True, help="The lane of the turn.")
@click.option("--yes", is_flag=True, help="Change the files without asking for confirmation.")
@click.option(
    "--force", is_flag=True, help="Also replace files that were changed after the session."
)
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
@click.pass_context
def restore(
    context: click.Context,
    session: str,
    turn: int,
    lane: str,
    yes: bool,
    force: bool,
    paths: tuple[Path, ...],
) -> None:
    """Restore the files that a session has changed to their state before a turn.

    SESSION is the ID of a session, the start or end of the ID (4 characters or more), or its name. PATHS are files or
    directories; default all files that the session has changed since then. Other files are not touched.

    Shows the changes, and asks for confirmation. A copy of each replaced file is kept in the home. Files that were
    changed after the session are not replaced without --force.
    """
    from agentobs.effects.workspaces.undo import plan_undo, undo
    from agentobs.recording.journal.home import existing_home
    from agentobs.store.recorded_workspaces import snapshot_of, state_at

    home = existing_home(home_option(context))
    session_id, states = _states(context, session)
    before, last = state_at(states, turn, lane), state_at(states)
    plan = plan_undo(
        home, before.workspace_id, snapshot_of(home, before), snapshot_of(home, last), paths
    )
    _print_notes(before)
    _print_uncaptured("cannot be restored", plan.unrestorable)
    if not plan.changes:
        files = "all other files" if plan.unrestorable else "the files"
        click.echo(f"nothing to do: {files} are as they were before this turn")
        return
    _print_plan(plan)
    if plan.conflicts and not force:
        raise UsageError(
            f"{len(plan.conflicts)} files were changed after session {session_id}, or were never recorded: "
            + ", ".join(printable(each) for each in plan.conflicts[:LISTED]),
            where="restore",
            todo="Commit or move your changes, name other PATHS, or pass --force",
        )
    count = f"{len(plan.changes)} file{'s' * (len(plan.changes) != 1)} in {plan.shadow.root}"
    if not yes and not sys.stdin.isatty():
        click.echo(f"not changed: {count}; pass --yes to change them without confirmation")
        sys.exit(1)
    if not yes and not click.confirm(f"change {count}?"):
        sys.exit(1)
    copies = undo(plan)
    click.echo(f"changed  {count}")
    if copies is not None:
        click.echo(f"copies   {copies}")


def _states(context: click.Context, session: str) -> tuple[str, list[RecordedState]]:
    """Return the full ID of a session, and the recorded states of its workspace."""
    from agentobs.store.recorded_workspaces import recorded_states

    with open_store(context) as store:
        session_id = session_of(store, session)
        return session_id, recorded_states(store, session_id)


def _print_notes(at: RecordedState) -> None:
    """Print why a state may differ from the files before the tools of its turn."""
    if not at.is_stable:
        click.echo("note     files changed while they were recorded", err=True)
    if at.late:
        click.echo("note     recorded late: changes of this turn may be included", err=True)


def _print_plan(plan: Undo) -> None:
    for line in plan.patch.decode("utf-8", "backslashreplace").splitlines():
        click.echo(printable(line.replace("\t", "    ")))


def _print_uncaptured(what: str, files: Sequence[Uncaptured]) -> None:
    """Print which files have no recorded content."""
    for each in files[:LISTED]:
        reason = each.reason.replace("_", " ")
        click.echo(f"{what}: {printable(each.path)} ({reason}, {each.size} bytes)", err=True)
    if len(files) > LISTED:
        click.echo(f"{what}: {len(files) - LISTED} more files", err=True)
