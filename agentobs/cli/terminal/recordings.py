"""Loading of recordings by session ID, session name or path."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from agentobs.errors import RecordingError, UsageError

if TYPE_CHECKING:
    from agentobs.records.exchanges import Recording


def load_recording(home: str | None, session: str | None, *, has_ended: bool = False) -> Recording:
    """Load a recorded session; None means the newest session that failed.

    Args:
        home: the home of the recording. Default: the default home.
        session: its ID, a suffix of it, or its name.
        has_ended: whether to refuse a session that is still running.

    Raises:
        RecordingError: the session is still running.
        UsageError: the session does not exist.
    """
    from agentobs.store.backend import open_store
    from agentobs.store.session_lookup import find_session

    with open_store(home) as store:
        if session is None:
            failed = store.rows("last_failed").first()
            if failed is None:
                raise UsageError(
                    "no session failed",
                    where=str(store.home.path),
                    todo="`agentobs sessions` lists all sessions",
                )
            session_id = str(failed["session_id"])
        else:
            session_id = find_session(store, session, key=store.home.key())
        summary = store.rows("internal/session_summary", session_id=session_id).first()
        if has_ended and summary and summary["status"] == "running":
            raise RecordingError(
                f"session {session_id} is still running",
                todo="Wait until it ends, or freeze its first turns with --until-turn N",
            )
        return store.content(session_id)


def servable_recording(home: str | None, name_or_path: str) -> Recording:
    """Load the recording to serve: a file of exchanges, a fixture, or a recorded session."""
    path = Path(name_or_path)
    if path.is_file() and not _is_fixture(path):
        from agentobs.recording.wire.exchange_file import read_wire_file

        return read_wire_file(path)
    if path.exists():
        from replay.fixture.format import as_recording, load

        return as_recording(load(path))
    return load_recording(home, name_or_path)


def _is_fixture(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(64).lstrip().startswith(b'{"agentobs_fixture"')
