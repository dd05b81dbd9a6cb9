"""Precomputed tables about all sessions, built when a state of the store is opened, so that listing is fast.

The views of the store aggregate a session from all of its records. For 100,000 sessions this takes a second, and the
failure signatures take another two. So both are kept as tables of the connection, in the schema `app`: `listing` has
one row per session, and `fired` one row per session and signature found. Signatures are computed last, and those of
unchanged sessions are copied from the previous state.
"""

from __future__ import annotations

import duckdb


def make_tables(connection: duckdb.DuckDBPyConnection) -> None:
    """Create the tables of a newly opened state; the signatures are computed later."""
    connection.execute(_TABLES)


def adopt_findings(
    before: duckdb.DuckDBPyConnection, connection: duckdb.DuckDBPyConnection
) -> None:
    """Copy the signatures of unchanged sessions from the previous state."""
    told, fired = before.execute(_KNOWN).fetchone() or (None, None)
    connection.execute("INSERT INTO app.told " + _TOLD, [told or "[]"])
    connection.execute("INSERT INTO app.fired " + _FIRED, [fired or "[]"])


def complete_findings(connection: duckdb.DuckDBPyConnection) -> bool:
    """Complete `fired`; return whether any findings were missing.

    Raises:
        duckdb.Error: there is not enough memory, or the query was interrupted.
    """
    bounds = connection.execute(_UNTOLD).fetchone()
    if bounds is None or bounds[0] is None:
        return False
    connection.begin()
    try:
        connection.execute(_TELL, {"first": bounds[0], "last": bounds[1]})
        connection.execute(_NOW_TOLD)
        connection.commit()
    except BaseException:
        connection.rollback()
        raise
    return True


# `words` is the searchable text in lower case; `fingerprint` changes whenever the row changes.
_TABLES = """
    CREATE SCHEMA app;
    CREATE TABLE app.listing AS
    WITH asked AS (
        SELECT session_id, list_sort(list(model)) AS models
        FROM (SELECT DISTINCT session_id, model FROM attempts WHERE model IS NOT NULL)
        GROUP BY session_id
    ), listed AS (
        SELECT
            sessions.* EXCLUDE (
                started_at, ended_ns, entry, continues_session_id, relation, forked_turn, replayed_requests
            ),
            coalesce(asked.models, []) AS models,
            coalesce(costs.cost_status, 'exact') AS cost_status,
            costs.lower_bound_calls,
            costs.estimated_calls
        FROM sessions
        LEFT JOIN asked ON sessions.session_id = asked.session_id
        LEFT JOIN cost_by_session AS costs ON sessions.session_id = costs.session_id
    )
    SELECT
        *,
        lower(concat_ws(
            chr(10), session_id, name, reason, signature, array_to_string(map_keys(tags), chr(10)),
            array_to_string(map_values(tags), chr(10))
        )) AS words,
        hash(listed) AS fingerprint
    FROM listed;
    CREATE TABLE app.fired (session_id VARCHAR, signature VARCHAR, times BIGINT, strength DOUBLE);
    CREATE TABLE app.told (fingerprint UBIGINT);
"""
_KNOWN = """
    SELECT
        (SELECT list(fingerprint)::VARCHAR FROM app.told),
        (SELECT to_json(list(fired))::VARCHAR FROM app.fired AS fired)
"""
_TOLD = """
    SELECT fingerprint FROM (SELECT unnest($1::UBIGINT[]) AS fingerprint)
    SEMI JOIN app.listing USING (fingerprint)
"""
_FIRED = """
    SELECT fired.* FROM (
        SELECT unnest(from_json($1,
            '[{"session_id":"VARCHAR","signature":"VARCHAR","times":"BIGINT","strength":"DOUBLE"}]'
        ), recursive := true)
    ) AS fired
    SEMI JOIN (FROM app.listing SEMI JOIN app.told USING (fingerprint)) AS same ON same.session_id = fired.session_id
"""
_UNTOLD = """
    SELECT min(session_id), max(session_id) FROM app.listing ANTI JOIN app.told USING (fingerprint)
"""
_TELL = """
    INSERT INTO app.fired
    SELECT found.session_id, found.signature, count(*), max(found.value / found.threshold)
    FROM diagnoses AS found
    SEMI JOIN (FROM app.listing ANTI JOIN app.told USING (fingerprint)) AS untold
        ON found.session_id = untold.session_id
    WHERE found.session_id BETWEEN $first AND $last
    GROUP BY found.session_id, found.signature
"""
_NOW_TOLD = """
    INSERT INTO app.told
    SELECT fingerprint FROM app.listing ANTI JOIN app.told USING (fingerprint)
"""
