"""Spending of all processes of a home since an instant, for daily budgets.

Cheap enough to call before each LLM request, because a result is cached for `FRESH_SECONDS`. It can
be late by that time, plus what the recorders have not written yet (at most a fraction of a second),
this process included.
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
"""How long a result is cached. A new query takes 120 ms at ten million calls (November 2026, 2 cores)."""

_DAY_NS = 86_400_000_000_000


@dataclass(slots=True)
class _Known:
    since_ns: int
    asked_ns: int
    answer: tuple[Decimal, int]


_known: dict[str, _Known] = {}
_lock = threading.Lock()


def spent(since_ns: int, home: Home | str | os.PathLike[str] | None = None) -> tuple[Decimal, int]:
    """Return the dollars spent since an instant, and the number of calls that are not exact, live
    recordings included.

    Calls without a price count as not exact and add nothing to the dollars.

    Args:
        since_ns: count calls sent then or later, nanoseconds since 1970.
        home: where the recordings are; defaults to `AGENTOBS_HOME`, else `.agentobs`.

    Raises:
        HomeError: there are no recordings at that place.
        ForeignError: the store file is not ours, or of a newer version.
    """
    place = home if isinstance(home, Home) else existing_home(home)
    with _lock:
        key = str(place.path)
        known, now = _known.get(key), world.monotonic()
        if known and known.since_ns == since_ns and now - known.asked_ns < FRESH_SECONDS * 1e9:
            return known.answer
        # The first query updates the published file if that is due; later ones read the tail.
        with connected(place, ingest=known is None) as connection:
            row = named(connection, "spent_today", since_ns=since_ns).fetchone()
        answer = (row[0], row[1]) if row else (Decimal(0), 0)
        _known[key] = _Known(since_ns, now, answer)
        return answer


def meter_of(session_id: str, home: Home | str | os.PathLike[str] | None = None) -> Meter:
    """Return a meter with the spending of one session so far, live recordings included.

    A resumed conversation has several sessions; `agentobs.agent.resumed` carries over the spending
    of all of them. Records that a recorder could not write make the sum a lower bound.

    Args:
        session_id: the full ID of the session.
        home: where the recordings are; defaults to `AGENTOBS_HOME`, else `.agentobs`.

    Raises:
        HomeError: there are no recordings at that place.
        UsageError: no session has that ID.
        ForeignError: the store file is not ours, or of a newer version.
    """
    place = home if isinstance(home, Home) else existing_home(home)
    parameters = {"session_id": session_id}
    meter = Meter(book_of(place.path))
    with connected(place, ingest=True) as connection:
        known = connection.execute(_KNOWN_SESSION, parameters).fetchone()
        if known is None:
            raise UsageError(
                "no session has that id",
                where=session_id[:80],
                todo="Give the full id; agentobs sessions lists them",
            )
        meter.add_facts(usage_of(connection, session_id))
        [lost] = connection.execute(_LOST, parameters).fetchone() or (0,)
    if lost:
        meter.lose(lost)
    return meter


def usage_of(connection: duckdb.DuckDBPyConnection, session_id: str) -> list[UsageRow]:
    """Return the usage billed to this session only, oldest first."""
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
    """Return the dollars spent today (UTC) by all processes of a home; 0 if nothing was recorded.

    For budgets: it never raises. If the store cannot be queried, a warning is printed once, and
    today's last result is returned.
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
