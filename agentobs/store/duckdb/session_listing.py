"""Session listing: precomputed tables with all sessions, built when a state of the store is opened.

The views of the store aggregate each session from all of its records. For 100,000 sessions this takes a second, and the
failure signatures take another two. Therefore both are kept as tables of the connection, in the schema `app`: `listing`
has one row per session, `found_signatures` has one row per session and signature found, and `last_errors` has one row
per session that failed. Signatures and errors are computed later, and those of unchanged sessions are copied from the
previous state. `checked` has the fingerprints of the sessions for which they have been computed.

A search reads one column, `words`: the facts of a session, the types of all its errors, its last error and its title.
The last two are known later than the row, so they are added to it. A join for each search would cost more than the
search itself.
"""

from __future__ import annotations

from collections.abc import Mapping

import duckdb


def make_tables(connection: duckdb.DuckDBPyConnection) -> None:
    """Create the tables of a newly opened state, without signatures."""
    connection.execute(_TABLES)


def adopt_findings(
    before: duckdb.DuckDBPyConnection, connection: duckdb.DuckDBPyConnection
) -> None:
    """Copy the signatures and errors of unchanged sessions from the previous state."""
    checked, found, errors = before.execute(_KNOWN).fetchone() or (None, None, None)
    connection.execute("INSERT INTO app.checked " + _CHECKED, [checked or "[]"])
    connection.execute("INSERT INTO app.found_signatures " + _FOUND, [found or "[]"])
    connection.execute("INSERT INTO app.last_errors " + _ERRORS, [errors or "[]"])
    update_listing(connection)


def complete_findings(connection: duckdb.DuckDBPyConnection) -> bool:
    """Compute the signatures and errors of all sessions that are not checked yet.

    Return whether there were any such sessions. Call `update_listing` afterward.

    Raises:
        duckdb.Error: there is not enough memory, or the query was interrupted.
    """
    bounds = connection.execute(_UNCHECKED).fetchone()
    if bounds is None or bounds[0] is None:
        return False
    connection.begin()
    try:
        connection.execute(_COMPUTE, {"first": bounds[0], "last": bounds[1]})
        connection.execute(_COMPUTE_ERRORS, {"first": bounds[0], "last": bounds[1]})
        connection.execute(_MARK_CHECKED)
        connection.commit()
    except BaseException:
        connection.rollback()
        raise
    return True


def add_titles(connection: duckdb.DuckDBPyConnection, titles: Mapping[str, str]) -> None:
    """Add titles to the rows of sessions, which replace earlier ones. Only one thread may change rows at a time."""
    connection.begin()
    try:
        connection.execute(_ADD_TITLES, [list(titles), list(titles.values())])
        connection.execute(_ADD_ERRORS)
        connection.commit()
    except BaseException:
        connection.rollback()
        raise


def update_listing(connection: duckdb.DuckDBPyConnection) -> None:
    """Add the errors and the numbers of signatures that are known by now to the rows.

    Only one thread may change rows at a time.
    """
    connection.execute(_ADD_ERRORS)
    connection.execute(_COUNT_SIGNATURES)


# `models` starts with the model of most requests of the main agent.
# `words` is the searchable text in lower case: `fact_words`, which never change, the last error and the title.
# `ß` and `ς` are folded as `str.casefold` folds them in the text to search for. `has_digests` is whether the facts or
# the last error contain digests; `fingerprint` is a hash of the row without these columns.
_TABLES = """
    CREATE SCHEMA app;
    CREATE TABLE app.listing AS
    WITH used_models AS (
        SELECT session_id, list_prepend(first, list_filter(models, lambda model: model <> first)) AS models
        FROM (
            SELECT session_id, list_sort(list(model)) AS models, arg_max(model, rank) AS first
            FROM (
                SELECT
                    session_id, model,
                    -- Of models with equally many requests, always the same one is first.
                    count(*) FILTER (WHERE lane = 'main') * 1000000.0 + count(*) + hash(model) % 1000 / 1000 AS rank
                FROM attempts
                WHERE model IS NOT NULL
                GROUP BY session_id, model
            )
            GROUP BY session_id
        )
    ), used_tools AS (
        SELECT session_id, lower(string_agg(name, chr(10))) AS tools
        FROM (
            SELECT session_id, name FROM tool_uses UNION SELECT session_id, name FROM provider_tool_uses
        )
        GROUP BY session_id
    ), met_errors AS (
        SELECT session_id, lower(string_agg(error_class, chr(10))) AS errors
        FROM error_classes
        GROUP BY session_id
    ), listed AS (
        SELECT
            sessions.* EXCLUDE (
                started_at, ended_ns, entry, continues_session_id, relation, forked_turn, replayed_requests,
                is_telemetry
            ),
            coalesce(used_models.models, []) AS models,
            coalesce(costs.cost_status, 'exact') AS cost_status,
            costs.lower_bound_calls,
            costs.estimated_calls
        FROM sessions
        LEFT JOIN used_models ON sessions.session_id = used_models.session_id
        LEFT JOIN cost_by_session AS costs ON sessions.session_id = costs.session_id
        WHERE NOT is_telemetry
    )
    SELECT
        listed.*,
        replace(replace(lower(concat_ws(
            chr(10), listed.session_id, name, reason, signature, array_to_string(map_keys(tags), chr(10)),
            array_to_string(map_values(tags), chr(10)),
            array_to_string([entry['key'] || '=' || entry['value'] FOR entry IN map_entries(tags)], chr(10)),
            array_to_string(models, chr(10)), used_tools.tools, met_errors.errors
        )), 'ß', 'ss'), 'ς', 'σ') AS fact_words,
        fact_words AS words,
        NULL::VARCHAR AS title,
        contains(fact_words, 'digest:') AS has_digests,
        has_failed_calls(listed.session_id) AS has_failed_calls,
        0::BIGINT AS signature_count,
        hash(listed) AS fingerprint
    FROM listed
    LEFT JOIN used_tools ON listed.session_id = used_tools.session_id
    LEFT JOIN met_errors ON listed.session_id = met_errors.session_id;
    CREATE TABLE app.found_signatures (session_id VARCHAR, signature VARCHAR, times BIGINT, strength DOUBLE);
    CREATE TABLE app.last_errors (
        session_id VARCHAR, error_kind VARCHAR, error_name VARCHAR, error VARCHAR, error_file VARCHAR,
        error_line BIGINT, error_outcome VARCHAR
    );
    CREATE TABLE app.checked (fingerprint UBIGINT);
"""
_ADD_TITLES = """
    UPDATE app.listing SET title = new.title, words = concat_ws(chr(10), fact_words, new.title)
    FROM (SELECT unnest($1::VARCHAR[]) AS session_id, unnest($2::VARCHAR[]) AS title) AS new
    WHERE listing.session_id = new.session_id
"""
_ADD_ERRORS = """
    UPDATE app.listing SET
        words = concat_ws(chr(10), fact_words, lower(errors.error), lower(errors.error_name), title),
        has_digests = contains(concat_ws(chr(10), fact_words, errors.error, errors.error_name), 'digest:')
    FROM app.last_errors AS errors
    WHERE listing.session_id = errors.session_id
"""
_COUNT_SIGNATURES = """
    UPDATE app.listing SET signature_count = found.signatures
    FROM (SELECT session_id, count(*) AS signatures FROM app.found_signatures GROUP BY session_id) AS found
    WHERE listing.session_id = found.session_id
"""
_KNOWN = """
    SELECT
        (SELECT list(fingerprint)::VARCHAR FROM app.checked),
        (SELECT to_json(list(found))::VARCHAR FROM app.found_signatures AS found),
        (SELECT to_json(list(found))::VARCHAR FROM app.last_errors AS found)
"""
_CHECKED = """
    SELECT fingerprint FROM (SELECT unnest($1::UBIGINT[]) AS fingerprint)
    SEMI JOIN app.listing USING (fingerprint)
"""
_FOUND = """
    SELECT found.* FROM (
        SELECT unnest(from_json($1,
            '[{"session_id":"VARCHAR","signature":"VARCHAR","times":"BIGINT","strength":"DOUBLE"}]'
        ), recursive := true)
    ) AS found
    SEMI JOIN (FROM app.listing SEMI JOIN app.checked USING (fingerprint)) AS same ON same.session_id = found.session_id
"""
_ERRORS = """
    SELECT found.* FROM (
        SELECT unnest(from_json($1,
            '[{"session_id":"VARCHAR","error_kind":"VARCHAR","error_name":"VARCHAR","error":"VARCHAR","error_file":"VARCHAR",
            "error_line":"BIGINT","error_outcome":"VARCHAR"}]'
        ), recursive := true)
    ) AS found
    SEMI JOIN (FROM app.listing SEMI JOIN app.checked USING (fingerprint)) AS same ON same.session_id = found.session_id
"""
_UNCHECKED = """
    SELECT min(session_id), max(session_id) FROM app.listing ANTI JOIN app.checked USING (fingerprint)
"""
_COMPUTE = """
    INSERT INTO app.found_signatures
    SELECT found.session_id, found.signature, count(*), max(found.value / found.threshold)
    FROM diagnoses AS found
    SEMI JOIN (FROM app.listing ANTI JOIN app.checked USING (fingerprint)) AS unchecked
        ON found.session_id = unchecked.session_id
    WHERE found.session_id BETWEEN $first AND $last
    GROUP BY found.session_id, found.signature
"""
_COMPUTE_ERRORS = """
    INSERT INTO app.last_errors
    SELECT
        found.session_id, found.step_kind, found.step_name,
        coalesce(found.step_class, found.error_class, found.step_outcome),
        coalesce(found.step_file, found.error_file), coalesce(found.step_line, found.error_line), found.step_outcome
    FROM failures AS found
    SEMI JOIN (FROM app.listing ANTI JOIN app.checked USING (fingerprint)) AS unchecked
        ON found.session_id = unchecked.session_id
    WHERE found.session_id BETWEEN $first AND $last
"""
_MARK_CHECKED = """
    INSERT INTO app.checked
    SELECT fingerprint FROM app.listing ANTI JOIN app.checked USING (fingerprint)
"""
