"""The recorded files of a session, for the commands that run an agent again."""

from __future__ import annotations

import dataclasses
import os
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agentobs.errors import UsageError
from agentobs.recording.git.repository import find_repository
from agentobs.records.display import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentobs.effects.workspaces.fork_directories import ForkDirectory
    from agentobs.recording.journal.home import Home
    from agentobs.records.exchanges import Recording
    from agentobs.store.recorded_workspaces import RecordedState
    from replay.workspace.recorded_workspace import RecordedWorkspace

LISTED = 10
"""The maximum number of files without content that are listed. Our choice."""


def session_workspace(home: str | None, recording: Recording) -> RecordedWorkspace | None:
    """Return the recorded files of a session; None if it recorded no files.

    Raises:
        UsageError: the files are not in this home, or could not be read at the start of the session.
    """
    from agentobs.store.backend import open_store
    from agentobs.store.recorded_workspaces import recorded_states

    with open_store(home) as store:
        states = recorded_states(store, recording.session_id)
        opened = store.home
    return _workspace(opened, recording, states) if states else None


def needed_workspace(home: str | None, recording: Recording) -> RecordedWorkspace:
    """Return the recorded files of a session.

    Raises:
        UsageError: it recorded no files, or they cannot be read.
    """
    from agentobs.store.recorded_workspaces import state_at

    found = session_workspace(home, recording)
    if found is None:
        state_at([])
        raise AssertionError("without states, this is an error")
    return found


def _workspace(home: Home, recording: Recording, states: list[RecordedState]) -> RecordedWorkspace:
    from agentobs.effects.workspaces.kept_states import state_trees
    from agentobs.effects.workspaces.shadow_git import existing_shadow
    from agentobs.store.recorded_workspaces import snapshot_of
    from replay.workspace.file_difference import shown_path
    from replay.workspace.recorded_workspace import RecordedWorkspace

    shadow = existing_shadow(home, states[0].workspace_id)
    trees = state_trees(shadow, recording.session_id)
    readable = [each for each in states if each.state in trees]
    if not readable or states[0].state not in trees:
        raise UsageError(
            "the files at the start of this session are not known",
            where=recording.session_id,
            todo="They could not be read, or were pruned; record the session again",
        )
    last = states[-1]
    main = [each for each in readable if each.lane == "main" and each.turn is not None]
    directory = (recording.arguments or {}).get("directory")
    return RecordedWorkspace(
        source=shadow.git_dir / "objects",
        start=trees[states[0].state or 0],
        end=trees.get(last.state or 0) if last.source == "end" else None,
        # An attempt that is retried has several states; the last one precedes the tools.
        turns={each.turn or 0: trees[each.state or 0] for each in main},
        name=shadow.root.name,
        directory=_relative(directory, shadow.root),
        has_repository=states[0].has_repository,
        commit=states[0].commit,
        uncaptured=tuple(
            f"{shown_path(each.path)} ({each.reason.replace('_', ' ')})"
            for each in snapshot_of(home, states[0]).uncaptured
        ),
        ignored=_patterns(shadow.git_dir / "info" / "exclude"),
        inexact_turns=frozenset(
            each.turn or 0 for each in main if each.late or each.is_stable is False
        ),
    )


def _relative(directory: object, root: Path) -> str:
    """Return the recorded working directory relative to the workspace; `.` if it is not known."""
    if not isinstance(directory, str):
        return "."
    path = Path(directory).resolve()
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else "."


def _patterns(file: Path) -> tuple[str, ...]:
    """Return the patterns in a file of ignored files, without comments."""
    try:
        lines = file.read_text("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return ()
    return tuple(each for each in lines if each.strip() and not each.startswith("#"))


def with_links(workspace: RecordedWorkspace, links: Sequence[Path]) -> RecordedWorkspace:
    """Return recorded files with links to paths of the current directory.

    Raises:
        UsageError: a path does not exist, or is not in the current directory.
    """
    found: dict[str, Path] = {}
    here = Path.cwd()
    for each in links:
        full = Path(os.path.normpath(here / each))
        if not full.exists() or full == here or not full.is_relative_to(here):
            raise UsageError(
                "this is not an existing path in the current directory",
                where=f"--link {each}",
                todo="Start the command in the directory of the project",
            )
        found[full.relative_to(here).as_posix()] = full
    return dataclasses.replace(workspace, links=found) if found else workspace


def new_directory(output: Path) -> Path:
    """Return the new directory that a user has chosen for a fork.

    Raises:
        UsageError: the directory is inside a git repository, on which the git commands of the agent would act.
    """
    full = output.absolute()
    parent = next(each for each in full.parents if each.is_dir())
    if find_repository(parent) is not None:
        raise UsageError(
            "this directory is inside a git repository, which git commands of the agent could change",
            where=str(output),
            todo="Choose a directory outside of repositories",
        )
    return full


def kept_directory(home: str | None, prefix: str) -> ForkDirectory:
    """Return a new temporary directory that is deleted when the sessions of its forks are pruned.

    Raises:
        UsageError: it cannot be created.
    """
    from agentobs.effects.workspaces.fork_directories import create_fork_directory
    from agentobs.recording.journal.home import open_home

    try:
        return create_fork_directory(open_home(home), prefix)
    except OSError as error:
        raise UsageError(
            f"no directory can be created for the fork: {error.strerror}",
            where=str(error.filename),
            todo="Free some space, or choose a directory with --output",
        ) from error


def keep_with(kept: ForkDirectory, session_ids: Sequence[str]) -> None:
    """Note the sessions with which a temporary directory is deleted; print a note if this is not possible."""
    try:
        kept.belongs_to(session_ids)
    except (OSError, ValueError) as error:
        path = printable(str(kept.path))
        click.echo(f"note    {path} is not deleted by `agentobs prune`: {error}", err=True)


def print_uncaptured(workspace: RecordedWorkspace) -> None:
    """Print which files at the start of the session are missing, because their content was not recorded."""
    files = workspace.uncaptured
    if files:
        more = f" and {len(files) - LISTED} more" if len(files) > LISTED else ""
        click.echo(f"note    not recorded: {', '.join(files[:LISTED])}{more}", err=True)


def print_exactness(workspace: RecordedWorkspace, turn: int) -> None:
    """Print a note if files are missing, or if those of a turn may not be exact."""
    print_uncaptured(workspace)
    if turn in workspace.inexact_turns:
        click.echo(
            f"note    the files of turn {turn} were recorded late or while they changed, so they may contain changes "
            "of that turn",
            err=True,
        )


def dollars(text: str | None) -> Decimal | None:
    """Return an amount of dollars; None if none is given.

    Raises:
        UsageError: it is not a positive number.
    """
    if text is None:
        return None
    try:
        value = Decimal(text.removeprefix("$"))
    except InvalidOperation:
        value = Decimal(0)
    if not value.is_finite() or value <= 0:
        raise UsageError(
            f"expected an amount of dollars above 0, got {text!r}",
            where="--max-usd",
            todo="For example, pass 2.50",
        )
    return value
