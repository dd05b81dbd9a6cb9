"""The figures of a home, for notebooks and scripts: each function runs its query and returns a plotly figure.

A notebook is a file that is often shared, so texts that people wrote are digests, as in the facts, unless `names` is
true. No figure contains prompts, responses or tool data.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import plotly.graph_objects as go

from agentobs.errors import UsageError
from agentobs.store.analysis.lane_names import (
    names_in_session,
    with_agents,
    with_agents_of_sessions,
)
from agentobs.store.analysis.wall_time import interaction_times
from agentobs.store.backend import open_store
from agentobs.store.label_texts import LabelTexts
from agentobs.store.port import Store
from agentobs.store.session_lookup import find_session
from dashboards import figures
from dashboards.figures.tokens import with_unfinished

Home = str | os.PathLike[str] | None
"""A home; None for `AGENTOBS_HOME`, else `.agentobs` in the current directory."""
Row = Mapping[str, Any]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def waterfall(session: object, *, home: Home = None, names: bool = False) -> go.Figure:
    """Return all operations of a session over time, by lane, and its critical path.

    Args:
        session: an ID, the start or end of one, a name, or an object with the attribute `session_id`.
        home: the home of the session; None for the default home.
        names: whether names and reasons that people wrote are shown instead of their digests.

    Raises:
        UsageError: no session matches, or several do.
        HomeError: there are no recordings.
    """
    with _opened(home, names) as opened:
        session_id = opened.find(session)
        path = [
            each for split in interaction_times(opened.store, session_id) for each in split.path
        ]
        rows = opened.named(opened.rows("session_waterfall", session_id=session_id), session_id)
    return figures.session_waterfall(rows, path)


def session_turns(session: object, *, home: Home = None, names: bool = False) -> go.Figure:
    """Return the tokens and the cost of each turn of a session; arguments and errors as for `waterfall`."""
    complete, unfinished = (
        _of_session(query, session, home, names)
        for query in ("session_turns", "internal/unfinished_turns")
    )
    return figures.session_turns(with_unfinished(complete, unfinished))


def context_growth(session: object, *, home: Home = None, names: bool = False) -> go.Figure:
    """Return the size of the prompts of a session over its turns; arguments and errors as for `waterfall`."""
    return figures.context_growth(_of_session("context_growth", session, home, names))


def time_split(session: object, *, home: Home = None) -> go.Figure:
    """Return the wall time of each interaction of a session, divided into model, tools, waits and own code.

    Args:
        session: an ID, the start or end of one, a name, or an object with the attribute `session_id`.
        home: the home of the session; None for the default home.

    Raises:
        UsageError: no session matches, or several do.
        HomeError: there are no recordings.
    """
    with _opened(home, False) as opened:
        session_id = opened.find(session)
        splits = interaction_times(opened.store, session_id)
        rows = opened.named([dataclasses.asdict(split) for split in splits], session_id)
    return figures.time_split(rows)


def cost_by_model(
    session: object = None,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    home: Home = None,
    names: bool = False,
) -> go.Figure:
    """Return the cost of each model.

    Args:
        session: only this session, as for `waterfall`; None for all sessions.
        since: only what happened at or after this time; local time if it has no time zone.
        until: only what happened before this time.
        home: the home of the sessions; None for the default home.
        names: whether names and reasons that people wrote are shown instead of their digests.

    Raises:
        UsageError: no session matches, or several do.
        HomeError: there are no recordings.
    """
    return figures.cost_by_model(_in_range("cost_by_model", session, since, until, home, names))


def cost_by_agent(
    session: object = None,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    home: Home = None,
    names: bool = False,
) -> go.Figure:
    """Return the cost of each agent, with separate rows for sub-agents; arguments and errors as for `cost_by_model`."""
    rows = _in_range("cost_by_agent", session, since, until, home, names)
    with _opened(home, names) as opened:
        rows = with_agents_of_sessions(opened.store, rows, opened.restored)
    return figures.cost_by_agent(rows)


def cost_by_day(
    session: object = None,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    home: Home = None,
) -> go.Figure:
    """Return the cost of each day (UTC); arguments and errors as for `cost_by_model`."""
    return figures.cost_by_day(_in_range("cost_by_day", session, since, until, home, False))


def cost_by_name(
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    home: Home = None,
    names: bool = False,
) -> go.Figure:
    """Return the cost of all sessions of each name; arguments and errors as for `cost_by_model`."""
    return figures.cost_by_name(_in_range("cost_by_name", None, since, until, home, names))


def cache_efficiency(
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    home: Home = None,
    names: bool = False,
) -> go.Figure:
    """Return what caching saved, by name of the sessions; arguments and errors as for `cost_by_model`."""
    return figures.cache_efficiency(_in_range("cache_by_name", None, since, until, home, names))


def cache_waste(
    session: object = None,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    home: Home = None,
) -> go.Figure:
    """Return what cache misses cost, by reason; arguments and errors as for `cost_by_model`."""
    return figures.cache_waste(_in_range("cache_waste", session, since, until, home, False))


def tool_latency(
    session: object = None,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    home: Home = None,
    names: bool = False,
) -> go.Figure:
    """Return how long the calls of each tool took; arguments and errors as for `cost_by_model`."""
    return figures.tool_latency(_in_range("tool_latency", session, since, until, home, names))


def tool_errors(
    session: object = None,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    home: Home = None,
    names: bool = False,
) -> go.Figure:
    """Return the share of failed calls of each tool; arguments and errors as for `cost_by_model`."""
    return figures.tool_errors(_in_range("tool_latency", session, since, until, home, names))


def blocked_on_user(
    session: object = None,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    home: Home = None,
    names: bool = False,
) -> go.Figure:
    """Return how long approval requests waited for an answer; arguments and errors as for `cost_by_model`."""
    return figures.blocked_on_user(
        _in_range("waits_for_people", session, since, until, home, names)
    )


def first_token(
    session: object = None,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    home: Home = None,
    names: bool = False,
) -> go.Figure:
    """Return the time to the first chunk of each model; arguments and errors as for `cost_by_model`."""
    return figures.first_token(
        _in_range("first_token_by_model", session, since, until, home, names)
    )


def failure_signatures(
    *, since: datetime | None = None, until: datetime | None = None, home: Home = None
) -> go.Figure:
    """Return the failure signatures that were found on each day (UTC); arguments and errors as for `cost_by_model`."""
    bounds: dict[str, Any] = {"since_ns": _ns(since), "until_ns": _ns(until)}
    with _opened(home, False) as opened:
        # Without these bounds, a query about a week would search in all earlier years.
        ids = opened.store.rows("session_range", since_ns=bounds["since_ns"]).first() or {}
        found = opened.rows("signatures_by_day", **bounds, **ids)
        days = opened.rows("sessions_by_day", **bounds)
    return figures.failure_signatures(found, days)


@dataclasses.dataclass(frozen=True, slots=True)
class _Opened:
    """An open store, and how names are shown."""

    store: Store
    texts: LabelTexts | None

    def find(self, session: object) -> str:
        """Return the ID of the session that a value specifies."""
        text = str(getattr(session, "session_id", session))
        return find_session(self.store, text, key=self.store.home.key())

    def rows(self, query: str, **parameters: Any) -> list[Row]:
        """Return the rows of a named query."""
        return self.restored(list(self.store.rows(query, **parameters).dicts()))

    def restored(self, rows: Sequence[Row]) -> list[Row]:
        """Return rows with the texts that are shown in place of digests."""
        return list(rows if self.texts is None else self.texts.replace_in_dicts(rows))

    def named(self, rows: Sequence[Row], session_id: str) -> list[Row]:
        """Return rows of a session with the display names of their lanes."""
        return list(with_agents(rows, names_in_session(self.store, session_id, self.restored)))


@contextmanager
def _opened(home: Home, names: bool) -> Iterator[_Opened]:
    with open_store(home) as store:
        yield _Opened(store, LabelTexts(store) if names else None)


def _of_session(query: str, session: object, home: Home, names: bool) -> Sequence[Row]:
    with _opened(home, names) as opened:
        session_id = opened.find(session)
        return opened.named(opened.rows(query, session_id=session_id), session_id)


def _in_range(
    query: str,
    session: object,
    since: datetime | None,
    until: datetime | None,
    home: Home,
    names: bool,
) -> Sequence[Row]:
    with _opened(home, names) as opened:
        chosen = {} if session is None else {"session_id": opened.find(session)}
        return opened.rows(query, since_ns=_ns(since), until_ns=_ns(until), **chosen)


def _ns(at: datetime | None) -> int | None:
    """Return a time in nanoseconds since 1970; a time without a zone is local."""
    if at is None:
        return None
    if not isinstance(at, datetime):
        raise UsageError(
            f"expected a datetime, got a {type(at).__name__}",
            where="since or until",
            todo="Pass a datetime, such as datetime(2026, 11, 1)",
        )
    return (at.astimezone() - _EPOCH) // timedelta(microseconds=1) * 1000
