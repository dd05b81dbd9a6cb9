"""Exchange sessions: the records around the exchanges of an imported session, and the times of its exchanges."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from agentobs.importers.line_files import instant_ns
from agentobs.records.exchanges import ModelExchange, Place, SessionCall
from agentobs.records.facts import Attempt, Fact, SessionEnd, SessionStart
from agentobs.records.labels import Label, unchecked

STEP_NS = 1_000_000
"""The assumed time between an exchange and the previous one if the file does not contain its time. Our choice."""
UNKNOWN_PLACE = Place("imported")
"""The place of an exchange before it is part of a session."""


def recorded_time(value: object) -> int | None:
    """Return an ISO 8601 time or an HTTP date in nanoseconds since 1970; None if it is missing or invalid."""
    for parse in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            at = parse(str(value))
            return instant_ns(at if at.tzinfo else at.replace(tzinfo=UTC))
        except (ValueError, TypeError, OverflowError):
            continue
    return None


def in_order(times: Sequence[int | None], otherwise_ns: int) -> list[int]:
    """Return strictly increasing times; an unknown time becomes the previous time plus `STEP_NS`.

    Args:
        times: the known times, in nanoseconds since 1970.
        otherwise_ns: the first time if no time is known.
    """
    known = next((at for at in times if at is not None), otherwise_ns)
    found: list[int] = []
    for at in times:
        least = found[-1] + STEP_NS if found else known
        found.append(max(at if at is not None else least, least))
    return found


def placed(exchange: ModelExchange, session_id: str, at_ns: int) -> ModelExchange:
    """Return an exchange as a part of a session, with an ID that is unique and always the same."""
    number = f"{session_id} {exchange.attempt_id}".encode()
    attempt_id = hashlib.blake2b(number, digest_size=16).hexdigest()
    return replace(exchange, place=Place(session_id), attempt_id=attempt_id, started_ns=at_ns)


def session_start(
    session_id: str, name: str, at_ns: int, kind: Label, tags: Mapping[str, Label] | None = None
) -> SessionCall:
    """Return the start of an imported session.

    Args:
        session_id: its ID.
        name: its name, such as the name of the file.
        at_ns: when it started, in nanoseconds since 1970.
        kind: the kind of file that it was imported from, which becomes the tag `imported`.
        tags: more tags.
    """
    unknown = Label("unknown")
    start = SessionStart(
        session_id=session_id,
        name=unchecked(name),
        started_ns=at_ns,
        entry=None,
        agentobs_version=unknown,
        sdk_version=None,
        python_version=unknown,
        platform=unknown,
        tags={Label(tag): value for tag, value in {"imported": kind, **(tags or {})}.items()},
        arguments_content=None,
    )
    return SessionCall(start, None)


def session_end(session_id: str, at_ns: int) -> SessionEnd:
    """Return the end of an imported session."""
    return SessionEnd(session_id, at_ns, "completed", None, None, 0)


def without_first_chunk_time(fact: Fact) -> Fact:
    """Remove the time of the first chunk, which recordings of other tools do not contain."""
    return replace(fact, first_chunk_ns=None) if isinstance(fact, Attempt) else fact
