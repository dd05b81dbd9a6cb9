"""Find an earlier session, read it, and convert it to a conversation that can continue."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from agentobs.agent.sessions.reconstruction import (
    AttemptSummary,
    conversation_of,
    end_of_turn,
    needed_attempts,
)
from agentobs.errors import RecordingError, UsageError, warn_once
from agentobs.recording.journal.home import Home, existing_home
from agentobs.recording.journal.segments import facts_path, read, segment_ids
from agentobs.recording.session import flush
from agentobs.records.canonical_json import Json
from agentobs.store.backend import open_store
from agentobs.store.billing.daily_spend import usage_of
from agentobs.store.port import Store
from agentobs.store.session_lookup import find_session


def load_conversation(request: Json, home: Home | str | os.PathLike[str] | None = None) -> Json:
    """Return the conversation of an earlier session, for `live_world(load=agentobs.wiring.load_conversation)`.

    Args:
        request: an object with `session_id`: the ID of the session, a prefix or suffix of at least 4 characters, or
            its name; `relation`: `resume` or `fork`; `turn`: for a fork, the last turn to include, or None.
        home: where the recordings are; defaults to `AGENTOBS_HOME`, else `.agentobs`.

    Raises:
        UsageError: there is no such session or turn, or it is still running.
        RecordingError: required data was not recorded, was pruned, or is damaged.
        HomeError: there are no recordings at that place.
        ForeignError: the recordings were written by a newer version.
    """
    place = home if isinstance(home, Home) else existing_home(home)
    turn = request.get("turn")
    # The earlier session may have ended in this process a moment ago.
    if not flush():
        raise RecordingError(
            "the latest records of this process are not written yet",
            where=str(place.path),
            todo="Retry",
        )
    with open_store(place) as store:
        session_id = _found(store, place, str(request["session_id"]))
        known = _known(store, session_id)
        _check(known, is_fork=request.get("relation") == "fork", turn=turn)
        until_ns = _end(known, turn) if turn is not None else None
        usage = usage_of(store, session_id)
        recording = store.content(session_id, bodies=needed_attempts(known.attempts, until_ns))
    return conversation_of(recording, usage, until_ns=until_ns, lost=known.dropped)


def _found(store: Store, home: Home, text: str) -> str:
    """Return the ID of the matching session.

    Raises:
        UsageError: no session matches, or several do.
        ForeignError: no session matches, but a segment was written by a newer version.
    """
    try:
        return find_session(store, text, key=home.key())
    except UsageError:
        for each in segment_ids(home):
            next(read(facts_path(home, each)), None)
        raise


@dataclass(frozen=True, slots=True)
class _Known:
    """The facts about the earlier session."""

    session_id: str
    status: str
    dropped: int
    continues_session_id: str | None
    attempts: Sequence[AttemptSummary]
    redactions: int


def _known(store: Store, session_id: str) -> _Known:
    summary = store.rows("internal/session_summary", session_id=session_id).first() or {}
    name = "internal/conversation_attempts"
    rows = store.rows(name, session_id=session_id).rows
    attempts = [AttemptSummary(*row[:-1]) for row in rows]
    redactions = sum(row[-1] for row in rows)
    return _Known(
        session_id,
        summary.get("status", ""),
        summary.get("dropped", 0),
        summary.get("continues_session_id"),
        attempts,
        redactions,
    )


def _check(known: _Known, *, is_fork: bool, turn: int | None) -> None:
    """Refuse a session that cannot be continued, and warn if its secrets were redacted.

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
            f"{known.dropped} records of the session were not written, so the end of the conversation is unknown",
            where=known.session_id,
            todo="Fork it at a turn that agentobs show lists",
        )
    if known.redactions:
        warn_once(
            f"session {known.session_id} contained secrets, which were not recorded: the model sees "
            "placeholders instead",
            about=f"redactions of {known.session_id}",
        )


def _end(known: _Known, turn: int) -> int | None:
    """Return when the turn after `turn` started.

    Raises:
        UsageError: the session has no such turn.
    """
    try:
        return end_of_turn(known.attempts, turn)
    except UsageError as error:
        earlier = known.continues_session_id
        todo = (
            f"{error.todo}; the conversation before it is in {earlier}" if earlier else error.todo
        )
        raise UsageError(error.found, where=known.session_id, todo=todo) from None


__all__ = ["load_conversation"]
