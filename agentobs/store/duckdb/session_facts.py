"""Session facts: convert rows of the fact tables back to the facts that were recorded."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import duckdb

from agentobs.records.facts import TABLES, Export, Pruning
from agentobs.store.port import Row, SegmentRange

_FACTS = {kind: table for kind, table in TABLES.items() if kind not in (Export, Pruning)}
"""The tables of the facts that a session records."""


def of_sessions(
    connection: duckdb.DuckDBPyConnection, session_ids: Sequence[str]
) -> Iterator[tuple[str, int, Any]]:
    """Yield the facts of some sessions as (segment ID, record number, fact)."""
    condition = "session_id IN (SELECT unnest($sessions))"
    yield from _read(connection, condition, {"sessions": list(session_ids)})


def of_range(
    connection: duckdb.DuckDBPyConnection, within: SegmentRange
) -> Iterator[tuple[str, int, Any]]:
    """Yield the facts of a range of a segment."""
    yield from _read(connection, _RANGE, dataclasses.asdict(within))


def count(connection: duckdb.DuckDBPyConnection, within: SegmentRange) -> int:
    """Return the number of facts in a range of a segment."""
    row = connection.execute(_COUNT, dataclasses.asdict(within)).fetchone()
    return int(row[0]) if row else 0


def ranges(
    connection: duckdb.DuckDBPyConnection,
    since_ns: int | None,
    session_ids: Sequence[str] | None,
) -> list[Row]:
    """Return one row for each session and segment; see `Store.fact_ranges`."""
    named = None if session_ids is None else list(session_ids)
    return connection.execute(_SESSIONS, {"since": since_ns, "named": named}).fetchall()


def _read(
    connection: duckdb.DuckDBPyConnection, condition: str, parameters: Mapping[str, Any]
) -> Iterator[tuple[str, int, Any]]:
    for kind, table in _FACTS.items():
        names, later = _fields(kind)
        sql = f"SELECT segment_id, sequence, {', '.join(names)} FROM {table} WHERE {condition}"
        for segment_id, sequence, *values in connection.execute(sql, parameters).fetchall():
            for at, default in later.items():
                if values[at] is None:
                    values[at] = default
            yield segment_id, sequence, kind(*values)


@cache
def _fields(kind: type) -> tuple[tuple[str, ...], dict[int, Any]]:
    """Return the fields of a kind of fact, and by position the defaults of fields that older stores may lack."""
    fields = dataclasses.fields(kind)
    later = {
        n: field.default
        for n, field in enumerate(fields)
        if field.default is not dataclasses.MISSING and field.default is not None
    }
    return tuple(field.name for field in fields), later


_RANGE = "session_id = $session_id AND segment_id = $segment_id AND sequence > $after AND sequence <= $last"
_COUNT = "SELECT count(*) FROM ({})".format(
    " UNION ALL ".join(f"SELECT 1 FROM {table} WHERE {_RANGE}" for table in _FACTS.values())
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
