"""Find an earlier session, read it, and convert it to a conversation that can continue."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import duckdb

from agentobs.agent.sessions.reconstruction import (
    AttemptSummary,
    conversation_of,
    end_of_turn,
    needed,
)
from agentobs.errors import RecordingError, UsageError, say_once
from agentobs.recording.journal.home import Home, existing_home
from agentobs.recording.journal.segments import facts_path, read, segment_ids
from agentobs.recording.session import flush
from agentobs.recording.vault.vault import read_session
from agentobs.records.canonical_json import Json
from agentobs.store.billing.daily_spend import usage_of
from agentobs.store.duckdb.connection import connect
from agentobs.store.named_queries import find_session, named


def load_conversation(asked: Json, home: Home | str | os.PathLike[str] | None = None) -> Json:
    """Return the conversation of an earlier session, for
    `live_world(load=agentobs.wiring.load_conversation)`.

    Args:
        asked: `session_id`: its ID, a suffix of at least 4 characters, or its name; `relation`:
            `resume` or `fork`; `turn`: for a fork the last turn to include, or None.
        home: where the recordings are; defaults to `AGENTOBS_HOME`, else `.agentobs`.

    Raises:
        UsageError: there is no such session or turn, or it is still running.
        RecordingError: something that it needs was not recorded, was pruned, or is damaged.
        HomeError: there are no recordings at that place.
        ForeignError: the recordings are of a newer version.
    """
    place = home if isinstance(home, Home) else existing_home(home)
    turn = asked.get("turn")
    # The earlier session may have ended in this process a moment ago.
    if not flush():
        raise RecordingError(
            "what this process recorded last is not written yet",
            where=str(place.path),
            todo="Try again",
        )
    with connect(place) as connection:
        session_id = _found(connection, place, str(asked["session_id"]))
        known = _known(connection, session_id)
        _check(known, is_fork=asked.get("relation") == "fork", turn=turn)
        until_ns = _end(known, turn) if turn is not None else None
        segments = [
            str(row[0])
            for row in named(connection, "session_segments", session_id=session_id).fetchall()
        ]
        usage = usage_of(connection, session_id)
    recording = read_session(place, session_id, segments, bodies=needed(known.asked, until_ns))
    return conversation_of(recording, usage, until_ns=until_ns, lost=known.dropped)


def _found(connection: duckdb.DuckDBPyConnection, home: Home, text: str) -> str:
    """Return the ID of the matching session.

    Raises:
        UsageError: no session matches, or several do.
        ForeignError: no session matches, but a segment is of a newer version.
    """
    try:
        return find_session(connection, text, key=home.key())
    except UsageError:
        for each in segment_ids(home):
            next(read(facts_path(home, each)), None)
        raise


@dataclass(frozen=True, slots=True)
class _Known:
    """The facts about a session."""

    session_id: str
    status: str
    dropped: int
    continues_session_id: str | None
    asked: Sequence[AttemptSummary]
    redactions: int


def _known(connection: duckdb.DuckDBPyConnection, session_id: str) -> _Known:
    parameters = {"session_id": session_id}
    status, dropped, earlier = connection.execute(_SESSION, parameters).fetchone() or ("", 0, None)
    rows = connection.execute(_ASKED, parameters).fetchall()
    attempts = [AttemptSummary(*row[:-1]) for row in rows]
    return _Known(session_id, status, dropped, earlier, attempts, sum(row[-1] for row in rows))


def _check(known: _Known, *, is_fork: bool, turn: int | None) -> None:
    """Refuse a session that cannot be continued, and warn about differences.

    Raises:
        UsageError: it is still running.
        RecordingError: the end of the conversation is unknown.
    """
    if known.status == "running" and not is_fork:
        raise UsageError(
            "the session is still running",
            where=known.session_id,
            todo="Wait until it has ended, or fork it",
        )
    if known.dropped and turn is None:
        raise RecordingError(
            f"{known.dropped} records of the session were not written, so that nobody knows what was said last",
            where=known.session_id,
            todo="Fork it at a turn that agentobs show lists",
        )
    if known.redactions:
        say_once(
            f"session {known.session_id} held secrets, which were not recorded: the model reads placeholders in "
            "their places",
            about=f"redactions of {known.session_id}",
        )


def _end(known: _Known, turn: int) -> int | None:
    """Return when the turn after `turn` started.

    Raises:
        UsageError: the session has no such turn.
    """
    try:
        return end_of_turn(known.asked, turn)
    except UsageError as error:
        earlier = known.continues_session_id
        todo = f"{error.todo}; what was said before it is in {earlier}" if earlier else error.todo
        raise UsageError(error.found, where=known.session_id, todo=todo) from None


_SESSION = """
    SELECT status, dropped::BIGINT, continues_session_id FROM sessions WHERE session_id = $session_id
"""
_ASKED = """
    SELECT attempt_id, lane, turn, started_ns, outcome IN ('ok', 'cancelled'), redactions
    FROM attempts
    WHERE session_id = $session_id AND endpoint = '/v1/messages'
    ORDER BY started_ns, sequence
"""

__all__ = ["load_conversation"]
