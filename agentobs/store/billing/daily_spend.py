"""Spending: what was spent since an instant, by all processes of a home, for budgets that last a day.

Cheap enough to ask before each call of a model: an answer is kept for `FRESH_SECONDS`. How late it can be is
that, and what the recorders have not written yet (at most a fraction of a second), of this process, too.
"""

from __future__ import annotations

import dataclasses
import os
import threading
from dataclasses import dataclass
from decimal import Decimal

import duckdb

from agentobs import world
from agentobs.errors import AgentobsError, UsageError, say_once
from agentobs.ledger import Meter, book_of
from agentobs.recording.journal.home import Home, existing_home
from agentobs.records.facts import UsageRow
from agentobs.store.duckdb.connection import connected
from agentobs.store.named_queries import named

FRESH_SECONDS = 2.0
"""How long an answer is kept. To ask anew takes 120 ms at ten million calls (November 2026, 2 cores)."""

_DAY_NS = 86_400_000_000_000


@dataclass(slots=True)
class _Known:
    since_ns: int
    asked_ns: int
    answer: tuple[Decimal, int]


_known: dict[str, _Known] = {}
_lock = threading.Lock()


def spent(since_ns: int, home: Home | str | os.PathLike[str] | None = None) -> tuple[Decimal, int]:
    """Return the dollars spent since an instant, and how many calls are not exact, live recordings included.

    Calls without a price are among those that are not exact; nothing stands for them in the dollars.

    Args:
        since_ns: calls sent then or later count, nanoseconds since 1970.
        home: where the recordings are; default `AGENTOBS_HOME`, else `.agentobs`.

    Raises:
        HomeError: there are no recordings at that place.
        ForeignError: the file in the place of the store is not ours, or of a newer version.
    """
    place = home if isinstance(home, Home) else existing_home(home)
    with _lock:
        key = str(place.path)
        known, now = _known.get(key), world.monotonic()
        if known and known.since_ns == since_ns and now - known.asked_ns < FRESH_SECONDS * 1e9:
            return known.answer
        # The first question brings the published file up to date where that is due; later ones read the tail.
        with connected(place, ingest=known is None) as connection:
            row = named(connection, "spent_today", since_ns=since_ns).fetchone()
        answer = (row[0], row[1]) if row else (Decimal(0), 0)
        _known[key] = _Known(since_ns, now, answer)
        return answer


def meter_of(session_id: str, home: Home | str | os.PathLike[str] | None = None) -> Meter:
    """Return a meter that has what a session has spent so far, live recordings included, and nobody else's.

    A conversation that was resumed has several sessions; `agentobs.agent.resumed` brings along what all of them
    have spent. What a recorder could not write of the session makes its sum a lower bound.

    Args:
        session_id: the full id of the session.
        home: where the recordings are; default `AGENTOBS_HOME`, else `.agentobs`.

    Raises:
        HomeError: there are no recordings at that place.
        UsageError: no session has that id.
        ForeignError: the file in the place of the store is not ours, or of a newer version.
    """
    place = home if isinstance(home, Home) else existing_home(home)
    given = {"session_id": session_id}
    meter = Meter(book_of(place.path))
    with connected(place, ingest=True) as connection:
        known = connection.execute(_KNOWN_SESSION, given).fetchone()
        if known is None:
            raise UsageError(
                "no session has that id",
                where=session_id[:80],
                todo="Give the full id; agentobs sessions lists them",
            )
        meter.add_facts(usage_of(connection, session_id))
        [lost] = connection.execute(_LOST, given).fetchone() or (0,)
    if lost:
        meter.lose(lost)
    return meter


def usage_of(connection: duckdb.DuckDBPyConnection, session_id: str) -> list[UsageRow]:
    """Return what was billed to a session and to no other, oldest first."""
    names = [each.name for each in dataclasses.fields(UsageRow)]
    rows = connection.execute(
        f"SELECT {', '.join(names)} {_OWN_USAGE}", {"session_id": session_id}
    ).fetchall()
    return [UsageRow(**dict(zip(names, row, strict=True))) for row in rows]


_KNOWN_SESSION = """
    SELECT 1 FROM session_starts WHERE session_id = $session_id
    UNION ALL SELECT 1 FROM usage WHERE session_id = $session_id LIMIT 1
"""
_OWN_USAGE = """
    FROM usage AS u
    WHERE session_id = $session_id AND billed AND (batch_result_id IS NULL OR NOT EXISTS (
        -- A result of a batch belongs to whoever fetched it first.
        FROM usage AS o
        WHERE o.batch_result_id = u.batch_result_id AND o.iteration = u.iteration AND o.billed
            AND o.session_id <> u.session_id
            AND (o.at_ns, o.attempt_id, o.segment_id, o.sequence) < (u.at_ns, u.attempt_id, u.segment_id, u.sequence)
    ))
    ORDER BY at_ns, attempt_id, segment_id, sequence
"""
_LOST = "SELECT coalesce(sum(dropped), 0)::BIGINT FROM session_ends WHERE session_id = $session_id"


def spent_today(home: Home | str | os.PathLike[str] | None = None) -> Decimal:
    """Return the dollars spent today (UTC) by all processes of a home; 0 where nothing was recorded.

    For budgets: it raises nothing. Where the store cannot be asked, that is said once, and the last answer of
    today stands.
    """
    now_ns = world.now()
    since_ns = now_ns - now_ns % _DAY_NS
    try:
        place = home if isinstance(home, Home) else existing_home(home)
    except AgentobsError:
        return Decimal(0)
    try:
        return spent(since_ns, place)[0]
    except (AgentobsError, OSError, duckdb.Error) as error:
        say_once(f"what was spent today is not known: {error}", about=f"spending of {place.path}")
        known = _known.get(str(place.path))
        return known.answer[0] if known and known.since_ns == since_ns else Decimal(0)
