"""Spending of all processes of a home since an instant, for daily budgets.

The functions are cheap enough to call before each LLM request, because a result is cached for `FRESH_SECONDS`. A result
can therefore be out of date by that time, plus the time that recorders need to write (at most a fraction of a second).
"""

from __future__ import annotations

import dataclasses
import os
import threading
from dataclasses import dataclass
from decimal import Decimal

from agentobs import world
from agentobs.errors import AgentobsError, UsageError, warn_once
from agentobs.ledger import Meter, book_of
from agentobs.recording.journal.home import Home, existing_home
from agentobs.records.facts import UsageRow
from agentobs.runtime import process
from agentobs.store.backend import open_store
from agentobs.store.port import Store

FRESH_SECONDS = 2.0
"""How long a result is cached. A new query takes 120 ms at ten million calls (November 2026, 2 cores)."""

_DAY_NS = 86_400_000_000_000


@dataclass(slots=True)
class _Known:
    since_ns: int
    requested_ns: int
    answer: tuple[Decimal, int]


class State:
    """The last results, by home."""

    def __init__(self) -> None:
        self.known: dict[str, _Known] = {}


_lock = threading.Lock()


def spent(since_ns: int, home: Home | str | os.PathLike[str] | None = None) -> tuple[Decimal, int]:
    """Return the dollars spent since an instant, and the number of calls whose cost is not exact. Running sessions are
    included.

    Calls without a price count as not exact and add nothing to the dollars.

    Args:
        since_ns: count calls sent at or after this time, nanoseconds since 1970.
        home: where the recordings are; defaults to `AGENTOBS_HOME`, else `.agentobs`.

    Raises:
        HomeError: there are no recordings at that place.
        ForeignError: the store file was not written by agentobs, or has a newer version.
    """
    state = process.state(State)
    place = home if isinstance(home, Home) else existing_home(home)
    with _lock:
        key = str(place.path)
        known, now = state.known.get(key), world.monotonic()
        if known and known.since_ns == since_ns and now - known.requested_ns < FRESH_SECONDS * 1e9:
            return known.answer
        # The first query updates the published file if an update is due; later queries read the tail.
        with open_store(place, ingest=known is None) as store:
            rows = store.rows("spent_today", since_ns=since_ns).rows
        answer = (rows[0][0], rows[0][1]) if rows else (Decimal(0), 0)
        state.known[key] = _Known(since_ns, now, answer)
        return answer


def meter_of(session_id: str, home: Home | str | os.PathLike[str] | None = None) -> Meter:
    """Return a meter with the spending of one session so far; the session may still be running.

    A resumed conversation has several sessions; `agentobs.agent.resumed` carries over the spending of all of them.
    If a recorder could not write some records of the session, the sum is a lower bound.

    Args:
        session_id: the full ID of the session.
        home: where the recordings are; defaults to `AGENTOBS_HOME`, else `.agentobs`.

    Raises:
        HomeError: there are no recordings at that place.
        UsageError: no session has that ID.
        ForeignError: the store file was not written by agentobs, or has a newer version.
    """
    place = home if isinstance(home, Home) else existing_home(home)
    meter = Meter(book_of(place.path))
    with open_store(place) as store:
        known = store.rows("internal/session_losses", session_id=session_id).rows
        if not known:
            raise UsageError(
                "no session with that ID",
                where=session_id[:80],
                todo="Pass the full ID; agentobs sessions lists them",
            )
        meter.add_facts(usage_of(store, session_id))
    if lost := known[0][0]:
        meter.add_lost_records(lost)
    return meter


def usage_of(store: Store, session_id: str) -> list[UsageRow]:
    """Return the usage billed to this session, oldest first."""
    names = [each.name for each in dataclasses.fields(UsageRow)]
    rows = store.rows("internal/session_usage", session_id=session_id).dicts()
    return [UsageRow(**{name: row[name] for name in names}) for row in rows]


def spent_today(home: Home | str | os.PathLike[str] | None = None) -> Decimal:
    """Return the dollars spent today (UTC) by all processes of a home; 0 if nothing was recorded.

    Budgets use this function, so it never raises. If the store cannot be queried, a warning is printed once, and
    today's last result is returned (0 if there is none).
    """
    state = process.state(State)
    now_ns = world.now()
    since_ns = now_ns - now_ns % _DAY_NS
    try:
        place = home if isinstance(home, Home) else existing_home(home)
    except AgentobsError:
        return Decimal(0)
    try:
        return spent(since_ns, place)[0]
    except (AgentobsError, OSError) as error:
        warn_once(f"today's spending is unknown: {error}", about=f"spending of {place.path}")
        known = state.known.get(str(place.path))
        return known.answer[0] if known and known.since_ns == since_ns else Decimal(0)
