"""Notes about sessions: titles and scores, given while a session runs or after it has ended.

The last title of a session applies, and the last score with a name for the same session, turn or tool call. Earlier
values are kept. Titles and comments are content: the facts contain keyed digests of them.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Literal

from agentobs import tracing, world
from agentobs.errors import DamagedError, UsageError
from agentobs.recording.journal.home import Home, existing_home
from agentobs.recording.journal.line_lookup import small_lines
from agentobs.recording.journal.segments import content_path
from agentobs.recording.late_facts import write_late_facts
from agentobs.recording.session import State, current_recorder
from agentobs.recording.titles import title_fact
from agentobs.recording.vault.encryption import content_key, decrypted_line
from agentobs.records.clear_text import is_declared_name
from agentobs.records.exchanges import Place
from agentobs.records.facts import Score
from agentobs.records.labels import Label, constant_label, is_digest, is_label, unchecked
from agentobs.runtime import current, process
from agentobs.sink import sink
from agentobs.store.backend import Store, open_store
from agentobs.store.session_lookup import id_in_facts

COMMENT_MAX = 10_000
"""The maximum length of a comment in characters. Our choice."""

Source = Literal["program", "command"]
"""Who gave a title or a score: the code of a program, or the command line."""


def title(text: str, *, session: str | None = None) -> None:
    """Set the title of a session, which local commands and pages show instead of its first prompt.

    The title is content: it is written to the vault, and never exported. Nothing is recorded outside a session, during
    a replay, or if the session records no content.

    Args:
        text: the title, in one line; at most 200 characters are kept.
        session: the full ID of another session, which may have ended; default the caller's session.

    Raises:
        UsageError: the text is empty, or no session has this ID.
    """
    set_title(text, session_id=session)


def set_title(
    text: str,
    *,
    session_id: str | None = None,
    home: Home | None = None,
    source: Source = "program",
) -> bool:
    """Set the title of a session; return whether it was recorded.

    Args:
        text: the title.
        session_id: the full ID of the session; default the caller's session.
        home: the home of a session that this process has not started; default the home of this process.
        source: who sets the title.

    Raises:
        UsageError: the text is empty, or no session has this ID.
        RecordingError: the content of the session is encrypted, and there is no key.
    """
    found = _target(session_id)
    fact = title_fact(found.session_id if found is not None else "", text, source)
    if found is None:
        return False
    if _is_recorded_here(found.session_id, session_id):
        sink.emit(fact)
        return True
    with open_store(home or _home(), ingest=False) as store:
        content = _content_mode(store, found.session_id)
        if content == "off":
            return False
        _check_encryption(store, found.session_id)
        write_late_facts(store.home, found.session_id, content, [fact])
    return True


def score(
    name: str,
    value: bool | float | Label,
    *,
    comment: str | None = None,
    session: str | None = None,
    lane: str | None = None,
    turn: int | None = None,
    tool_use_id: str | None = None,
) -> None:
    """Give the caller's session a score, or one of its turns or tool calls.

        agentobs.score("correct", 0.8, comment="the total is right, the date is not")
        agentobs.score("grade", agentobs.Label("B"), session=session_id, turn=3)

    If a session, a turn or a tool call gets several scores with the same name, the last one applies. Outside a session
    and during a replay, nothing is recorded. A score is exported as an event, without its comment.

    Args:
        name: what is judged: letters, digits and `_.:-`.
        value: a finite number, a boolean, or a label.
        comment: any text. It is content: it is written to the vault, and never exported.
        session: the full ID of another session, which may have ended; default the caller's session.
        lane: the lane of the turn or of the tool call; default the lane of the caller, or `main` for another session.
        turn: the turn to which the score belongs, from 1.
        tool_use_id: the ID of the tool call to which the score belongs.

    Raises:
        UsageError: the name, the value or the turn is invalid, or there is no such session, turn or tool call.
    """
    give_score(name, value, comment, session, lane, turn, tool_use_id)


def give_score(
    name: str,
    value: bool | float | Label,
    comment: str | None = None,
    session_id: str | None = None,
    lane: str | None = None,
    turn: int | None = None,
    tool_use_id: str | None = None,
    *,
    home: Home | None = None,
    source: Source = "program",
) -> bool:
    """Record a score, see `score`; return whether it was recorded.

    Args:
        name: what is judged.
        value: a finite number, a boolean, or a label.
        comment: any text, or None.
        session_id: the full ID of the session; default the caller's session.
        lane: the lane of the turn or of the tool call, or None.
        turn: the turn, or None.
        tool_use_id: the ID of the tool call, or None.
        home: the home of a session that this process has not started; default the home of this process.
        source: who gives the score.

    Raises:
        UsageError: the name, the value or the turn is invalid, or there is no such session, turn or tool call.
        RecordingError: there is a comment, the content of the session is encrypted, and there is no key.
    """
    _check(name, turn, tool_use_id, comment)
    value_type, number, label = _value(name, value)
    here = _target(session_id)
    if here is None:
        return False
    has_lane = turn is not None or tool_use_id is not None
    fact = Score(
        here.session_id,
        world.now(),
        constant_label(name),
        value_type,
        number,
        label,
        unchecked(comment) if comment else None,
        source,
        here.interaction_id,
        unchecked(lane or here.lane) if has_lane else None,
        turn,
        _call_label(tool_use_id) if tool_use_id is not None else None,
    )
    if _is_recorded_here(here.session_id, session_id):
        sink.emit(fact)
        return True
    with open_store(home or _home(), ingest=False) as store:
        content = _content_mode(store, here.session_id)
        placed = _placed(store, fact, lane)
        if comment and content != "off":
            _check_encryption(store, here.session_id)
        write_late_facts(store.home, here.session_id, content, [placed])
    return True


def _call_label(tool_use_id: str) -> Label:
    """Return the ID of a tool call, or the digest that queries show in its place."""
    return Label(tool_use_id) if is_digest(tool_use_id) else unchecked(tool_use_id)


def _check(name: str, turn: int | None, tool_use_id: str | None, comment: str | None) -> None:
    if not isinstance(name, str) or not is_declared_name(name):
        raise UsageError(
            f"{str(name)[:80]!r} is not the name of a score",
            where="score",
            todo="Use at most 128 letters, digits and _.:-; write a longer text into the comment",
        )
    if turn is not None and (isinstance(turn, bool) or not isinstance(turn, int) or turn < 1):
        raise UsageError(
            f"there is no turn {turn!r}", where=f"score {name}", todo="Turns count from 1"
        )
    if turn is not None and tool_use_id is not None:
        raise UsageError(
            "both a turn and a tool call are given",
            where=f"score {name}",
            todo="Pass one of them; a tool call already identifies its turn",
        )
    if comment is not None and len(comment) > COMMENT_MAX:
        raise UsageError(
            f"the comment has {len(comment):,} characters",
            where=f"score {name}",
            todo=f"Shorten it to at most {COMMENT_MAX:,} characters",
        )


def _value(
    name: str, value: object
) -> tuple[Literal["number", "boolean", "label"], float | None, Label | None]:
    """Return the type of a value, its number and its label."""
    if isinstance(value, Label):
        return "label", None, value
    if isinstance(value, bool):
        return "boolean", float(value), None
    if isinstance(value, int | float):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return "number", number, None
        raise UsageError(
            "the value is not a finite number", where=f"score {name}", todo="Pass a finite number"
        )
    raise UsageError(
        f"the value is a {type(value).__name__}, which may contain content",
        where=f"score {name}",
        todo="Pass a number, a boolean or agentobs.Label(word), and a text as the comment",
    )


def _target(session_id: str | None) -> Place | None:
    """Return the place of the caller, or a place in another session; None if nothing is recorded."""
    if current().is_answered:
        return tracing.place() if session_id is None else None
    return tracing.place() if session_id is None else Place(session_id)


def _is_recorded_here(session_id: str, named: str | None) -> bool:
    """Return whether the sink of this process receives the records of a session."""
    if named is None or current().is_answered:
        return True
    return current_recorder() is not None and session_id in process.state(State).started


def _home() -> Home:
    """Return the home of this process.

    Raises:
        HomeError: there are no recordings.
    """
    recorder = current_recorder()
    return recorder.home if recorder is not None else existing_home(None)


def _content_mode(store: Store, session_id: str) -> str:
    """Return the content mode of a session.

    Raises:
        UsageError: the session is not in the store.
    """
    if not store.rows("internal/sessions_present", session_ids=[session_id]).rows:
        raise UsageError(
            f"no session has the ID {session_id[:80]!r}",
            where=str(store.home.path),
            todo="Pass the full ID of a session; `agentobs sessions` lists them",
        )
    [(content, *_)] = store.rows("internal/content_state", session_id=session_id).rows
    return content or "vault"


def _check_encryption(store: Store, session_id: str) -> None:
    """Check that a text about a session with encrypted content would be encrypted as well.

    Raises:
        RecordingError: the content of the session is encrypted, and there is no key.
        UsageError: the key cannot be used.
    """
    if content_key() is not None:
        return
    for segment_id, content_id in store.rows("internal/start_content", session_id=session_id).rows:
        path = content_path(store.home, segment_id)
        try:
            lines = small_lines(path, {content_id})
            values = [json.loads(line) for line in lines.values()]
        except (DamagedError, OSError, ValueError):
            continue  # the content was deleted or is damaged, which `agentobs verify` reports
        for value in values:
            decrypted_line(value, segment_id, str(path))


def _placed(store: Store, fact: Score, lane: str | None) -> Score:
    """Return a score with the interaction of its turn, or with the place of its tool call.

    Raises:
        UsageError: there is no such turn or tool call, or several lanes have a call with this ID.
    """
    if fact.tool_use_id is not None:
        is_stored = isinstance(fact.tool_use_id, Label)
        key = store.home.key()
        stored = fact.tool_use_id if is_stored else id_in_facts(fact.tool_use_id, key)
        found = store.rows(
            "internal/scored_calls", session_id=fact.session_id, lane=lane, tool_use_id=stored
        ).rows
        return replace(_at(fact, found, f"tool call {fact.tool_use_id[:80]}"), turn=None)
    if fact.turn is not None:
        found = store.rows(
            "internal/scored_turns", session_id=fact.session_id, lane=lane or "main", turn=fact.turn
        ).rows
        return _at(fact, found, f"turn {fact.turn}{f' in the lane {lane}' if lane else ''}")
    return replace(fact, lane=None)


def _at(fact: Score, found: list[tuple[str | None, str, int | None]], what: str) -> Score:
    if not found:
        raise UsageError(
            f"the session has no {what}",
            where=fact.session_id,
            todo="`agentobs show SESSION` lists its turns, and the view tool_calls the IDs of its tool calls",
        )
    if len(found) > 1:
        raise UsageError(
            f"several lanes have a {what}: {', '.join(sorted(row[1] for row in found))}",
            where=fact.session_id,
            todo="Name the lane as well",
        )
    [(interaction_id, lane, turn)] = found
    known = Label(lane) if is_label(lane) else unchecked(lane)
    return replace(fact, interaction_id=interaction_id, lane=known, turn=turn)


__all__ = ["score", "title"]
