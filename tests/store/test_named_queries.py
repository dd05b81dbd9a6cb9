"""Named queries, and searches for sessions by ID or name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from agentobs.errors import UsageError
from agentobs.recording.journal.home import Home
from agentobs.store.duckdb.connection import connect, named
from agentobs.store.duckdb.store import DuckStore
from agentobs.store.named_queries import query_names, query_text
from agentobs.store.session_lookup import find_session
from tests.store.recordings import SECOND, T0, a_home, conversation, record, session_id, start


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    """Three sessions: an older and a newer `refund-loop`, and a session whose name is not a label."""
    home = a_home(tmp_path_factory.mktemp("asked"))
    record(home, conversation(1, name="refund-loop"))
    record(home, conversation(2, name="refund-loop", at=T0 + SECOND))
    record(home, [start(3, name="my very own session", at=T0 - SECOND)])
    with connect(home) as connection:
        assert find_session(
            DuckStore(connection, home), "my very own session", key=home.key()
        ) == session_id(3)
        yield connection


def port_of(connection: duckdb.DuckDBPyConnection) -> DuckStore:
    """Return a store that wraps a connection; its home is not read."""
    return DuckStore(connection, Home(Path()))


@pytest.mark.slow
def test_all_queries_start_with_a_question_and_run(connection: duckdb.DuckDBPyConnection) -> None:
    """Each named query starts with its question and runs without any parameter."""
    assert query_names() == [
        "broken_caches",
        "cache_by_name",
        "cache_by_session",
        "cache_efficiency",
        "cache_misses",
        "cache_rewrites",
        "cache_waste",
        "clock_jumps",
        "context_growth",
        "contradictions",
        "conversation_sessions",
        "cost_by_agent",
        "cost_by_branch",
        "cost_by_commit",
        "cost_by_conversation",
        "cost_by_day",
        "cost_by_model",
        "cost_by_model_and_day",
        "cost_by_name",
        "cost_by_repository",
        "cost_by_session",
        "cost_by_source",
        "costs_not_exact",
        "damaged_segments",
        "diagnosable",
        "diagnoses",
        "diagnoses_by_session",
        "failed_summaries",
        "failures",
        "file_changes",
        "first_token_by_model",
        "full_contexts",
        "hook_outcomes",
        "interaction_intervals",
        "large_results",
        "last_failed",
        "lines_changed",
        "long_waits",
        "losses",
        "open_at_death",
        "person_time",
        "rate_limit_headroom",
        "recorded_lately",
        "repeated_calls",
        "repeated_denials",
        "repeated_tool_errors",
        "rising_costs",
        "session_errors",
        "session_range",
        "session_scores",
        "session_segments",
        "session_steps",
        "session_timeline",
        "session_turns",
        "session_waterfall",
        "sessions",
        "sessions_by_day",
        "signatures_by_day",
        "silent_hook_cancels",
        "slowest_requests",
        "slowest_tools",
        "spent_today",
        "tool_latency",
        "unpriced_models",
        "unused_summaries",
        "usage_by_model_day",
        "waits_for_people",
        "workspace_states",
    ]
    for name in query_names():
        first = query_text(name).partition("\n")[0]
        assert first.startswith("-- ")
        assert first.endswith("?") or "?" in query_text(name).partition("\n--\n")[0]
        named(connection, name).fetchall()


@pytest.mark.slow
def test_parameters_filter_the_rows(connection: duckdb.DuckDBPyConnection) -> None:
    """Parameters that are passed filter the rows; parameters that are not passed do not."""

    def ids(**parameters: object) -> list[str]:
        return [row[0][:8] for row in named(connection, "sessions", **parameters).fetchall()]

    assert ids() == ["00000002", "00000001", "00000003"]
    assert ids(limit=1) == ["00000002"]
    assert ids(failed=True) == ["00000003"]
    assert ids(failed=False, name="refund-loop") == ["00000002", "00000001"]
    assert ids(since_ns=T0) == ["00000002", "00000001"]
    [row] = named(connection, "cost_by_model", session_id=session_id(1)).fetchall()
    assert row[1] == 3
    [failed] = named(connection, "last_failed").fetchall()
    assert failed[:3] == (session_id(3), row_name(connection), "crashed")
    [held] = named(connection, "session_segments", session_id=session_id(1)).fetchall()
    # These are 1 start, 3 turns with the start and end of an interaction, an attempt, the start and end of a span,
    # usage and zones, and 1 end. The first line of the segment is not a record of the session.
    assert held[1:] == ("sealed", 20, 2, 24, 0, 0)


def row_name(connection: duckdb.DuckDBPyConnection) -> str:
    [row] = connection.execute("SELECT name FROM sessions WHERE status = 'crashed'").fetchall()
    assert row[0].startswith("digest:")
    return str(row[0])


def test_unknown_query_and_parameter(connection: duckdb.DuckDBPyConnection) -> None:
    """The error for an unknown query suggests similar names, and the error for an unknown parameter lists the valid
    ones.
    """
    with pytest.raises(UsageError) as refused:
        named(connection, "cost_by_modell")
    assert str(refused.value) == (
        "cost_by_modell: no query has that name. Did you mean cost_by_model or cost_by_name or cost_by_model_and_day."
    )
    with pytest.raises(UsageError) as refused:
        named(connection, "sessions", limits=1)
    assert str(refused.value) == (
        "limits: query sessions has no parameter limits. It takes causes, failed, limit, name, session_ids, "
        "since_ns, telemetry."
    )
    with pytest.raises(UsageError):
        named(connection, "../views")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (session_id(1), 1),
        ("00000001", 1),
        ("00000001000", 1),
        ("00030003", 3),
        ("0002", 2),
        ("refund-loop", 2),
    ],
)
def test_find_a_session_by_id_or_name(
    connection: duckdb.DuckDBPyConnection, text: str, number: int
) -> None:
    """A session is found by its ID, by a prefix or suffix of its ID, or by its name; the latest session with the name
    is used.
    """
    assert find_session(port_of(connection), text) == session_id(number)


def test_unknown_session(connection: duckdb.DuckDBPyConnection) -> None:
    """If no session matches, the error suggests similar names; if a suffix matches several IDs, it lists them.

    A part of an ID with three characters is too short.
    """
    with pytest.raises(UsageError, match=r"refund-lop: no session .* Did you mean refund-loop\."):
        find_session(port_of(connection), "refund-lop")
    with pytest.raises(UsageError) as refused:
        find_session(port_of(connection), "0000")
    assert refused.value.found == "3 sessions match"
    assert f"{session_id(2)} (refund-loop), {session_id(1)} (refund-loop)" in refused.value.todo
    with pytest.raises(UsageError, match="The latest are"):
        find_session(port_of(connection), "zzz")
    with pytest.raises(UsageError):
        find_session(port_of(connection), "002")
    with pytest.raises(UsageError):
        find_session(port_of(connection), "%%%%")


@pytest.mark.slow
def test_find_a_session_in_an_empty_home(tmp_path: Path) -> None:
    """In an empty home no session is found, and the error states why."""
    home = a_home(tmp_path)
    with connect(home) as connection:
        with pytest.raises(UsageError, match="Nothing was recorded yet"):
            find_session(DuckStore(connection, home), "story")
        for name in query_names():
            assert named(connection, name).fetchall() == []
