"""Recorded: the facts of sessions, read back from the store in the order in which they were told.

A session's facts lie in several tables and may lie in several segments. They come back page by page, so that what is
held at once does not grow with a session, and small sessions share a page.
"""

from __future__ import annotations

import dataclasses
import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import duckdb

from agentobs.errors import AgentobsError
from agentobs.recording.journal.home import Home
from agentobs.recording.vault.vault import Vault, text_bytes
from agentobs.records.backend import Said
from agentobs.records.facts import TABLES, Attempt, Export, Fact, Pruning, ToolResult

PAGE = 5_000
"""How many facts are held at once. Our choice: some 10 MB."""
VAULTS = 2
"""How many content files are kept open at once."""

_FACTS = {kind: table for kind, table in TABLES.items() if kind not in (Export, Pruning)}
"""What is told of a session from within."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one segment holds of a session."""

    segment_id: str
    last: int
    """The number of the last of its facts in that segment."""
    facts: int


@dataclass(frozen=True, slots=True)
class Recorded:
    """A session that was recorded."""

    session_id: str
    started_ns: int | None
    """When it began; None where its start was not recorded."""
    parts: tuple[Part, ...]
    """Oldest segment first."""
    is_over: bool
    """Whether nothing more can come: no process has a segment open that holds some of it."""
    version: str
    """The version of this package that recorded it."""
    content: str
    """Where its content may go."""
    live: Mapping[str, str]
    """Where its telemetry went while it ran."""

    @property
    def facts(self) -> int:
        """How many facts it has."""
        return sum(part.facts for part in self.parts)


@dataclass(frozen=True, slots=True)
class Row:
    """One fact, and where it stands."""

    session: Recorded
    segment_id: str
    sequence: int
    """Its number within the segment."""
    fact: Fact


def recorded_sessions(
    connection: duckdb.DuckDBPyConnection,
    *,
    since_ns: int | None = None,
    session_ids: Sequence[str] = (),
) -> list[Recorded]:
    """Return the sessions that began at an instant or later, or those that are named, the oldest first."""
    given = {"since": since_ns, "named": list(session_ids) or None}
    found: dict[str, list[Any]] = {}
    for session_id, *told, segment_id, last, facts in connection.execute(
        _SESSIONS, given
    ).fetchall():
        _, parts = found.setdefault(session_id, [told, []])
        parts.append(Part(segment_id, last, facts))
    return [
        Recorded(session_id, started, tuple(parts), is_over, version, content, live or {})
        for session_id, ((started, is_over, version, content, live), parts) in found.items()
    ]


def conversations(connection: duckdb.DuckDBPyConnection) -> dict[str, str]:
    """Return for each session that was resumed by another, or resumes one, the first session of its conversation."""
    earlier: dict[str, str] = dict(connection.execute(_RESUMED).fetchall())
    roots: dict[str, str] = {}
    for session_id in earlier:
        root, seen = session_id, set()
        while root in earlier and root not in seen:
            seen.add(root)
            root = earlier[root]
        roots |= dict.fromkeys((*seen, root), root)
    return roots


def facts_of(connection: duckdb.DuckDBPyConnection, sessions: Sequence[Recorded]) -> Iterator[Row]:
    """Yield the facts of some sessions, a session after the other, each in the order in which they were told."""
    page: list[Recorded] = []
    held = 0
    for session in sessions:
        if page and held + session.facts > PAGE:
            yield from _whole(connection, page)
            page, held = [], 0
        if session.facts > PAGE:
            yield from _paged(connection, session)
            continue
        page.append(session)
        held += session.facts
    if page:
        yield from _whole(connection, page)


def _whole(connection: duckdb.DuckDBPyConnection, sessions: Sequence[Recorded]) -> Iterator[Row]:
    """Yield what some small sessions hold."""
    place = {session.session_id: n for n, session in enumerate(sessions)}
    condition = "session_id IN (SELECT unnest($sessions))"
    rows = [
        Row(sessions[place[fact.session_id]], segment_id, sequence, fact)
        for segment_id, sequence, fact in _read(connection, condition, {"sessions": list(place)})
    ]
    rows.sort(key=lambda row: (place[row.session.session_id], row.segment_id, row.sequence))
    yield from rows


def _paged(connection: duckdb.DuckDBPyConnection, session: Recorded) -> Iterator[Row]:
    """Yield what a large session holds, a page at a time."""
    for part in session.parts:
        after, width = 0, PAGE
        while after < part.last:
            given = {"session": session.session_id, "segment": part.segment_id, "after": after}
            # Others' facts lie between, so that nobody knows how many are in a stretch.
            while (facts := _count(connection, given, after + width)) > PAGE and width > 1:
                width //= 2
            last = {"last": after + width}
            rows = [Row(session, *each) for each in _read(connection, _STRETCH, {**given, **last})]
            rows.sort(key=lambda row: row.sequence)
            yield from rows
            after += width
            width *= 2 if facts <= PAGE // 2 else 1


def _count(connection: duckdb.DuckDBPyConnection, given: Mapping[str, Any], last: int) -> int:
    row = connection.execute(_COUNT, {**given, "last": last}).fetchone()
    return int(row[0]) if row else 0


def _read(
    connection: duckdb.DuckDBPyConnection, condition: str, given: Mapping[str, Any]
) -> Iterator[tuple[str, int, Any]]:
    for kind, table in _FACTS.items():
        names, later = _fields(kind)
        sql = f"SELECT segment_id, sequence, {', '.join(names)} FROM {table} WHERE {condition}"
        for segment_id, sequence, *values in connection.execute(sql, given).fetchall():
            for at, default in later.items():
                if values[at] is None:
                    values[at] = default
            yield segment_id, sequence, kind(*values)


@cache
def _fields(kind: type) -> tuple[tuple[str, ...], dict[int, Any]]:
    """Return the fields of a fact, and the defaults of those that came later, by place."""
    fields = dataclasses.fields(kind)
    later = {
        n: field.default
        for n, field in enumerate(fields)
        if field.default is not dataclasses.MISSING and field.default is not None
    }
    return tuple(field.name for field in fields), later


class Spoken:
    """What was said in sessions that opted in, read back from the content files."""

    def __init__(self, home: Home) -> None:
        """Read nothing yet."""
        self._home = home
        self._vaults: OrderedDict[tuple[str, str], Vault] = OrderedDict()
        self.missing = 0
        """Exchanges whose content was pruned, is damaged, or is sealed with a key that is not there."""

    def said(self, row: Row) -> Said | None:
        """Return what was said with an attempt, or with a call that was run; None where the session did not opt in."""
        fact = row.fact
        if row.session.content != "export":
            return None
        try:
            if isinstance(fact, Attempt) and fact.request_content and fact.response_content:
                vault = self._vault(row)
                chunks = vault.answer(fact.response_content).chunks
                return Said(vault.body(fact.request_content), b"".join(c.data for c in chunks))
            if isinstance(fact, ToolResult) and fact.source == "run" and fact.content:
                call = json.loads(text_bytes(self._vault(row).value(fact.content)))
                return Said(_json(call["input"]), _json(call["result"]))
        except (AgentobsError, OSError, ValueError, LookupError, TypeError):
            self.missing += 1
        return None

    def _vault(self, row: Row) -> Vault:
        key = row.segment_id, row.session.session_id
        vault = self._vaults.pop(key, None) or Vault(self._home, *key)
        self._vaults[key] = vault
        while len(self._vaults) > VAULTS:
            self._vaults.popitem(last=False)
        return vault


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


_STRETCH = (
    "session_id = $session AND segment_id = $segment AND sequence > $after AND sequence <= $last"
)
_COUNT = "SELECT count(*) FROM ({})".format(
    " UNION ALL ".join(f"SELECT 1 FROM {table} WHERE {_STRETCH}" for table in _FACTS.values())
)
_HELD = " UNION ALL ".join(
    f"SELECT session_id, segment_id, sequence FROM {table}" for table in _FACTS.values()
)
_SESSIONS = f"""
    WITH parts AS (
        SELECT session_id, segment_id, max(sequence) AS last, count(*) AS facts FROM ({_HELD})
        WHERE session_id IS NOT NULL GROUP BY session_id, segment_id
    ), begun AS (
        SELECT
            session_id, min(started_ns) AS started_ns, arg_min(agentobs_version, started_ns) AS version,
            arg_min(content, started_ns) AS content, arg_min(live_exports, started_ns) AS live
        FROM session_starts GROUP BY session_id
    ), running AS (
        SELECT DISTINCT session_id FROM parts JOIN segments USING (segment_id) WHERE state = 'open'
    )
    SELECT
        parts.session_id, begun.started_ns, running.session_id IS NULL, coalesce(begun.version, 'unknown'),
        coalesce(begun.content, 'off'), begun.live, parts.segment_id, parts.last, parts.facts
    FROM parts
    LEFT JOIN begun USING (session_id)
    LEFT JOIN running USING (session_id)
    WHERE ($since::BIGINT IS NULL OR begun.started_ns >= $since::BIGINT)
        AND ($named::VARCHAR[] IS NULL OR parts.session_id IN (SELECT unnest($named::VARCHAR[])))
    ORDER BY begun.started_ns, parts.session_id, parts.segment_id
"""
_RESUMED = """
    SELECT session_id, any_value(continues_session_id) FROM session_starts
    WHERE relation = 'resume' AND continues_session_id IS NOT NULL GROUP BY session_id
"""
