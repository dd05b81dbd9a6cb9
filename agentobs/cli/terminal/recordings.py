"""Recordings that a command names by ID, by name or by path."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from agentobs.errors import RecordingError, UsageError

if TYPE_CHECKING:
    from agentobs.records.exchanges import Recording


def recorded(home: str | None, session: str | None, *, has_ended: bool = False) -> Recording:
    """Return a recorded session whole; None means the newest one that failed.

    Args:
        home: where it was recorded; None: the default.
        session: its id, an end of it, or its name.
        has_ended: whether one that still runs is refused.

    Raises:
        RecordingError: it still runs.
        UsageError: there is no such session.
    """
    from agentobs.recording.journal.home import existing_home
    from agentobs.recording.vault.vault import read_session
    from agentobs.store.duckdb.connection import connect, find_session, named

    found = existing_home(home)
    with connect(found) as connection:
        if session is None:
            failed = named(connection, "last_failed").fetchone()
            if failed is None:
                raise UsageError(
                    "no session failed", where=str(found.path), todo="agentobs sessions lists them"
                )
            session_id = str(failed[0])
        else:
            session_id = find_session(connection, session, key=found.key())
        asked = "SELECT status FROM sessions WHERE session_id = ?"
        if has_ended and connection.execute(asked, [session_id]).fetchone() == ("running",):
            raise RecordingError(
                f"session {session_id} still runs",
                todo="Wait for its end, or freeze what there is: --until-turn N",
            )
        segments = [
            row[0]
            for row in named(connection, "session_segments", session_id=session_id).fetchall()
        ]
    return read_session(found, session_id, segments)


def _servable(home: str | None, named: str) -> Recording:
    path = Path(named)
    if path.is_file() and not _is_fixture(path):
        from agentobs.recording.wire.exchange_file import read_wire_file

        return read_wire_file(path)
    if path.exists():
        from replay.fixture.format import as_recording, load

        return as_recording(load(path))
    return recorded(home, named)


def _is_fixture(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(64).lstrip().startswith(b'{"agentobs_fixture"')
