"""Failed steps: the errors of a session, grouped by what failed, with which error, and where; and their numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentobs.records.display import listed
from agentobs.store.port import Store

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FailedSteps:
    """Steps of one agent that failed in the same way."""

    kind: str
    """`attempt` or `tool_call`."""
    name: str
    """The tool or the model."""
    outcome: str
    error_class: str | None
    status: int | None
    """The HTTP status of a request."""
    file: str | None
    line: int | None
    lane: str
    turns: Sequence[int]
    """The turns in which they failed, in order."""
    ids: Sequence[str]
    """The IDs of the steps, in the order in which they ended."""
    retried: int
    """The number of requests after which another attempt of the same turn succeeded."""

    @property
    def count(self) -> int:
        """The number of failed steps."""
        return len(self.ids)


_SUCCESSFUL = ("ok", "executed", "substituted", "answered", "deduplicated", None)
"""Outcomes of requests and tool calls that are not failures."""


def has_failed(step: Row) -> bool:
    """Return whether the outcome of a step is a failure."""
    if step["kind"] == "decision":
        return str(step["outcome"]).startswith("deny")
    return step["outcome"] not in _SUCCESSFUL


def nothing_failed(status: str, steps: Sequence[Row]) -> str:
    """Return a sentence, without a full stop, that nothing failed in a session; empty if it did not complete, if a step
    failed, or if it has no steps.

    Args:
        status: the status of the session.
        steps: the rows of `session_steps`.
    """
    if status != "completed" or any(has_failed(step) for step in steps):
        return ""
    known = [step["kind"] for step in steps if step["outcome"] is not None]
    counted = [
        f"{number:,} {noun}{'s' * (number != 1)}"
        for kind, noun in (("tool_call", "tool call"), ("request", "request"))
        if (number := known.count(kind))
    ]
    if not counted:
        return ""
    unknown = sum(step["outcome"] is None for step in steps if step["kind"] != "decision")
    rest = f"; the outcome of {unknown:,} more is unknown" if unknown else ""
    return f"Nothing failed: {listed(counted)} succeeded{rest}"


def group_failed_steps(errors: Iterable[Row], turns: Iterable[Row]) -> list[FailedSteps]:
    """Return the failed requests and tool calls of a session in groups.

    Groups of which all steps were retried come last. Otherwise, the largest groups come first.

    Args:
        errors: the rows of `session_errors`.
        turns: the rows of `session_turns`.
    """
    succeeded = {(row["lane"], row["turn"]) for row in turns}
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in errors:
        if row["kind"] in ("attempt", "tool_call"):
            key = tuple(
                row[name]
                for name in ("kind", "name", "outcome", "error_class", "status", "error_file", "error_line", "lane")
            )  # fmt: skip
            groups.setdefault(key, []).append(row)
    found = [_group(rows, succeeded) for rows in groups.values()]
    return sorted(found, key=lambda each: (each.retried == each.count, -each.count))


def failed_call_counts(store: Store, session_ids: Sequence[str]) -> dict[str, int]:
    """Return the numbers of failed tool calls of sessions, by session ID; only of sessions with failed calls."""
    counts = store.rows("internal/failed_calls", session_ids=list(session_ids))
    return {row["session_id"]: row["failed_calls"] for row in counts.dicts()}


@dataclass(frozen=True, slots=True)
class FailedCalls:
    """The failed tool calls of a session."""

    count: int
    tool: str | None
    """The tool that failed most often; None if unknown."""
    of_tool: int
    """The number of failed calls of this tool."""

    @property
    def words(self) -> str:
        """The number of failed calls, and the tool that failed most often: `3 calls failed, 2 of refund`."""
        calls = f"{self.count:,} call{'s' * (self.count != 1)}"
        if self.tool is None or self.of_tool == 1 < self.count:
            return f"{calls} failed"
        if self.of_tool == self.count:
            return f"{calls} of {self.tool} failed"
        return f"{calls} failed, {self.of_tool:,} of {self.tool}"


def failed_calls(
    store: Store, session_ids: Sequence[str], restore: Callable[[Any], Any] = list
) -> dict[str, FailedCalls]:
    """Return the failed tool calls of sessions, by session ID; only of sessions with failed calls.

    Args:
        store: the store.
        session_ids: the sessions.
        restore: returns rows with the original texts instead of digests.
    """
    rows = store.rows("internal/failed_calls", session_ids=list(session_ids)).dicts()
    return {
        row["session_id"]: FailedCalls(
            row["failed_calls"], row["failing_tool"], row["failing_tool_calls"] or 0
        )
        for row in restore(rows)
    }


def _group(rows: Sequence[Row], succeeded: set[tuple[str, int]]) -> FailedSteps:
    first = rows[0]
    is_request = first["kind"] == "attempt"
    return FailedSteps(
        str(first["kind"]),
        str(first["name"] or ""),
        str(first["outcome"]),
        first["error_class"],
        first["status"],
        first["error_file"],
        first["error_line"],
        str(first["lane"] or "main"),
        sorted({row["turn"] for row in rows if row["turn"] is not None}),
        [str(row["id"]) for row in rows],
        sum(is_request and (row["lane"], row["turn"]) in succeeded for row in rows),
    )
