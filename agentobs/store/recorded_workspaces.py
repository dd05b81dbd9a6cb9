"""Workspaces of recorded sessions: which state of the files belongs to which turn.

`agentobs.effects.workspaces` restores and compares the states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentobs.effects.workspaces.kept_states import state
from agentobs.effects.workspaces.snapshots import Snapshot
from agentobs.errors import UsageError
from agentobs.recording.journal.home import Home
from agentobs.store.port import Store


@dataclass(frozen=True, slots=True)
class RecordedState:
    """A state of the workspace of a session, as a row of `workspace_states`."""

    session_id: str
    source: str
    """`start`, `request` or `end`."""
    lane: str | None
    turn: int | None
    """The turn that the request asked for: the state is the one before the tools of this turn ran."""
    attempt_id: str | None
    at_ns: int
    state: int | None
    """The number of the state in the session, from 1; None if the files could not be read."""
    workspace_id: str
    files: int | None
    bytes: int | None
    uncaptured: int | None
    """The number of files without content."""
    changes: int | None
    """The number of files that differ from the previous state."""
    is_stable: bool | None
    """Whether no file changed while the files were read."""
    late: bool
    """Whether the response started before all files were read."""
    failure: str | None
    """Why the files could not be read."""
    has_repository: bool = False
    """Whether the workspace is in a git repository of the user."""
    commit: str | None = None
    """The commit that was checked out in this repository; None if there was none, or if it is unknown."""


def recorded_states(store: Store, session_id: str) -> list[RecordedState]:
    """Return the states of the workspace of a session, oldest first; an empty list if it recorded no files.

    Args:
        store: the store.
        session_id: the full ID of the session.
    """
    table = store.rows("workspace_states", session_id=session_id)
    return [RecordedState(session_id, *row) for row in table.rows]


def state_at(
    states: Sequence[RecordedState], turn: int | None = None, lane: str = "main"
) -> RecordedState:
    """Return the state before the tools of a turn ran; without a turn, the last state.

    Args:
        states: the states of a session, from `recorded_states`.
        turn: the turn, from 1.
        lane: the lane of the turn.

    Raises:
        UsageError: the session recorded no files, has no such turn, or its files could not be read then.
    """
    if not states:
        raise UsageError(
            "this session recorded no files",
            todo="Record files with `agentobs record --effects files`, or `agentobs.session(..., effects=['files'])`",
        )
    found = [each for each in states if turn is None or (each.turn, each.lane) == (turn, lane)]
    if not found:
        turns = sorted(
            {each.turn for each in states if each.lane == lane and each.turn is not None}
        )
        known = f"it has turns {turns[0]} to {turns[-1]}" if turns else "it has no turns"
        raise UsageError(
            f"no files were recorded at turn {turn} of lane {lane}",
            where=states[0].session_id,
            todo=f"Choose another turn: in this lane, {known}",
        )
    # An attempt that is retried has several states; the last one precedes the tools.
    readable = [each for each in found if each.state is not None]
    if not readable:
        raise UsageError(
            f"the files could not be read then: {found[-1].failure}",
            where=states[0].session_id,
            todo="Choose an earlier turn",
        )
    return readable[-1]


def snapshot_of(home: Home, recorded: RecordedState) -> Snapshot:
    """Return the snapshot of a recorded state.

    Raises:
        UsageError: the state is not in this home; it was pruned, or the session was imported.
        DamagedError, ShadowGitError: the state cannot be read.
    """
    assert recorded.state is not None
    return state(home, recorded.workspace_id, recorded.session_id, recorded.state)


__all__ = ["RecordedState", "recorded_states", "snapshot_of", "state_at"]
