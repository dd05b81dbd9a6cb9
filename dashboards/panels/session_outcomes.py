"""How a session went: its steps and which failed, what signatures of failure say, what became of what was said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import duckdb

from agentobs.store.analysis.diagnosis import SIGNATURES, Verdict, diagnose
from dashboards.panels.panels import rows_of

Row = Mapping[str, Any]
_WENT_WELL = ("ok", "executed", "substituted", "deduplicated", None)
"""Outcomes of requests and calls that are no failure."""


class Fired(NamedTuple):
    """A signature of failure that fires."""

    verdict: Verdict
    meaning: str
    """When it fires, in words."""
    evidence: Sequence[Row]
    """Its strongest evidence."""


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What the signatures of failure say of a session, sorted by what a reader wants of them."""

    fires: Sequence[Fired]
    """The strongest first."""
    quiet: Sequence[str]
    unknown: Sequence[Verdict]


def verdicts_of(connection: duckdb.DuckDBPyConnection, session_id: str, most: int) -> Verdicts:
    """Return what the signatures of failure say of a session, each with at most so many rows of evidence."""
    meaning = {signature.name: signature.fires for signature in SIGNATURES}
    verdicts = diagnose(connection, session_id)
    fires = sorted((each for each in verdicts if each.fires), key=lambda each: -each.strength)
    return Verdicts(
        [Fired(each, meaning[each.signature], _strongest(each, most)) for each in fires],
        [each.signature for each in verdicts if not each.fires and not each.cannot_tell],
        [each for each in verdicts if each.cannot_tell],
    )


def steps_of(connection: duckdb.DuckDBPyConnection, session_id: str) -> list[dict[str, Any]]:
    """Return the steps of a session, each with the attempt that it belongs to, and whether it failed."""
    calls = {
        (row["lane"], row["turn"], row["tool_use_id"]): row
        for row in selected(connection, _CALLS, [session_id])
    }
    found = []
    for step in rows_of(connection, "session_steps", session_id=session_id):
        call = calls.get((step["lane"], step["turn"], step["id"]))
        attempt_id = step["id"] if step["kind"] == "request" else call and call["attempt_id"]
        is_failed = step["outcome"] not in _WENT_WELL or bool(call and call["is_error"])
        if step["kind"] == "decision":
            is_failed = str(step["outcome"]).startswith("deny")
        found.append({**step, "attempt_id": attempt_id, "is_failed": is_failed})
    return found


def kept_of(connection: duckdb.DuckDBPyConnection, session_id: str) -> Row:
    """Return what became of what was said: where it may be, when it was pruned, and where the session came from."""
    [found] = selected(connection, _KEPT, {"session_id": session_id})
    return found


def selected(
    connection: duckdb.DuckDBPyConnection, sql: str, parameters: Any
) -> list[dict[str, Any]]:
    """Return the rows of a statement of ours."""
    answered = connection.execute(sql, parameters)
    columns = [str(column[0]) for column in answered.description or []]
    return [dict(zip(columns, row, strict=True)) for row in answered.fetchall()]


def _strongest(verdict: Verdict, most: int) -> list[Row]:
    ordered = sorted(verdict.evidence, key=lambda row: -row["strength"])
    return [dict(row) for row in ordered[:most]]


_CALLS = """
    SELECT lane, turn, tool_use_id, attempt_id, is_error FROM tool_calls WHERE session_id = ?
"""
_KEPT = """
    SELECT
        (SELECT arg_min(content, started_ns) FROM session_starts WHERE session_id = $session_id) AS content,
        (SELECT arg_min(source, started_ns) FROM session_starts WHERE session_id = $session_id) AS source,
        (SELECT max(pruned_ns) FROM prunings WHERE session_id = $session_id) AS pruned_ns,
        (SELECT sum(redactions) FROM attempts WHERE session_id = $session_id) AS redactions
"""
