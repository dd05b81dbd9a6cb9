"""Failed steps: the errors of a session, grouped by what failed, with which error, and where; and their numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentobs.records.display import listed
from agentobs.records.labels import DIGEST
from agentobs.records.request_failures import UNFINISHED_OUTCOMES, request_failure
from agentobs.store.port import Store

Row = Mapping[str, Any]
MOST_WAYS = 3
"""The maximum number of ways to fail that one sentence names, of tool calls and of requests each. Our choice: one line.
"""
NO_CLASS = "no error class recorded"
"""What is shown in place of the error class of steps that may have failed for different reasons."""


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

    @property
    def error(self) -> str:
        """How they failed, in words: the error class, with the HTTP status of a request; the outcome if unknown."""
        error_class = self.error_class
        if error_class is not None and error_class.startswith(DIGEST):
            error_class = None
        if self.kind == "attempt" and self.outcome in UNFINISHED_OUTCOMES:
            return request_failure(self.outcome, error_class, self.status)
        has_status = self.status is not None and self.status >= 400
        parts = (f"HTTP {self.status}" if has_status else None, error_class)
        return " ".join(filter(None, parts)) or self.outcome


_SUCCESSFUL = ("ok", "executed", "substituted", "answered", "deduplicated", None)
"""Outcomes of requests and tool calls that are not failures."""


def has_failed(step: Row) -> bool:
    """Return whether the outcome of a step is a failure."""
    if step["kind"] == "decision":
        return str(step["outcome"]).startswith("deny")
    return step["outcome"] not in _SUCCESSFUL


def nothing_failed(status: str, steps: Sequence[Row], *, is_imported: bool) -> str:
    """Return a sentence, without a full stop, that nothing failed in a session; empty if it did not complete, if a step
    failed, or if it has no steps.

    Args:
        status: the status of the session.
        steps: the rows of `session_steps`.
        is_imported: whether the session was imported from a log, which contains no HTTP statuses of its requests.
    """
    if status != "completed" or any(has_failed(step) for step in steps):
        return ""
    known = [step["kind"] for step in steps if step["outcome"] is not None]
    calls, requests = known.count("tool_call"), known.count("request")
    counted = [_count(calls, "tool call")] if calls else []
    if requests and not is_imported:
        counted.append(_count(requests, "request"))
    if not calls and not requests:
        return ""
    unknown = sum(step["outcome"] is None for step in steps if step["kind"] != "decision")
    rest = f"; the outcome of {unknown:,} more is unknown" if unknown else ""
    succeeded = f"{listed(counted)} succeeded" if counted else ""
    if not is_imported or not requests:
        return f"Nothing failed: {succeeded}{rest}"
    statuses = f"the HTTP status{'es' * (requests != 1)} of {_count(requests, 'request')}"
    not_recorded = f"{statuses} {'were' if requests != 1 else 'was'} not recorded"
    return f"No failure is recorded: {'; '.join(filter(None, (succeeded, not_recorded)))}{rest}"


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


def number_failed(groups: Iterable[FailedSteps], kind: str) -> int:
    """Return the number of failed steps of a kind, `attempt` or `tool_call`, in groups."""
    return sum(each.count for each in groups if each.kind == kind)


def counted_failures(groups: Sequence[FailedSteps]) -> str:
    """Return how many tool calls and request attempts failed: `26 tool calls and 5 request attempts (all retried)`."""
    calls, attempts = (number_failed(groups, kind) for kind in ("tool_call", "attempt"))
    parts = [_count(calls, "tool call")] if calls else []
    if attempts:
        parts.append(f"{_count(attempts, 'request attempt')}{_retried(groups)}")
    return listed(parts)


def failures_by_way(groups: Sequence[FailedSteps]) -> str:
    """Return how many tool calls and request attempts failed, and in which ways: by tool or model, and error class.

    `26 failed tool calls: 20 look (invalid), 6 fetch (timeout)`. Empty if nothing failed.
    """
    sentences = []
    for kind, noun, rest in (
        ("tool_call", "failed tool call", ""),
        ("attempt", "failed request attempt", _retried(groups)),
    ):
        ways = Counter[str]()
        for each in groups:
            if each.kind == kind:
                ways[_way(each)] += each.count
        if ways:
            sentences.append(f"{_count(ways.total(), noun)}{rest}: {_ways(ways)}")
    return "; ".join(sentences)


def failed_call_counts(store: Store, session_ids: Sequence[str]) -> dict[str, int]:
    """Return the numbers of failed tool calls of sessions, by session ID; only of sessions with failed calls."""
    counts = store.rows("internal/failed_calls", session_ids=list(session_ids))
    return {row["session_id"]: row["failed_calls"] for row in counts.dicts()}


@dataclass(frozen=True, slots=True)
class FailedCalls:
    """The failed tool calls of a session, and its requests without a response."""

    count: int
    tool: str | None
    """The tool that failed most often; None if unknown."""
    of_tool: int
    """The number of failed calls of this tool."""
    requests: int = 0
    """The number of requests of which all attempts failed."""

    @property
    def words(self) -> str:
        """The number of failed tool calls, the tool that failed most often, and the number of failed requests:
        `3 tool calls failed, 2 of refund; 1 request failed`.
        """
        requests = f"{_count(self.requests, 'request')} failed" if self.requests else ""
        return "; ".join(filter(None, (self._calls, requests)))

    @property
    def _calls(self) -> str:
        if not self.count:
            return ""
        if self.tool is not None and self.of_tool == self.count:
            return f"{_count(self.count, 'call')} of {self.tool} failed"
        most = f", {self.of_tool:,} of {self.tool}" if self.tool and self.of_tool > 1 else ""
        return f"{_count(self.count, 'tool call')} failed{most}"


def failed_calls(
    store: Store, session_ids: Sequence[str], restore: Callable[[Any], Any] = list
) -> dict[str, FailedCalls]:
    """Return the failed tool calls and requests of sessions, by session ID; only of sessions with any.

    Args:
        store: the store.
        session_ids: the sessions.
        restore: returns rows with the original texts instead of digests.
    """
    ids = {"session_ids": list(session_ids)}
    calls = {
        row["session_id"]: (
            row["failed_calls"],
            row["failing_tool"],
            row["failing_tool_calls"] or 0,
        )
        for row in restore(store.rows("internal/failed_calls", **ids).dicts())
    }
    requests: dict[str, int] = dict(store.rows("internal/failed_requests", **ids).rows)
    return {
        session_id: FailedCalls(*calls.get(session_id, (0, None, 0)), requests.get(session_id, 0))
        for session_id in (*calls, *(each for each in requests if each not in calls))
    }


def _way(group: FailedSteps) -> str:
    name = "without a name" if not group.name or group.name.startswith(DIGEST) else group.name
    return f"{name} ({NO_CLASS if group.error == 'failed' else group.error})"


def _ways(ways: Counter[str]) -> str:
    """Return the most frequent ways with their numbers, and the number of steps that failed in other ways."""
    total = ways.total()
    if len(ways) == 1:
        return f"{'all ' if total > 1 else ''}{next(iter(ways))}"
    shown = ways.most_common(MOST_WAYS)
    rest = total - sum(number for _, number in shown)
    others = [f"{rest:,} in other ways"] if rest else []
    return ", ".join([*(f"{number:,} {way}" for way, number in shown), *others])


def _retried(groups: Iterable[FailedSteps]) -> str:
    """Return how many of the failed request attempts were retried, in words; empty if none was."""
    attempts = [each for each in groups if each.kind == "attempt"]
    total, retried = sum(each.count for each in attempts), sum(each.retried for each in attempts)
    if not retried:
        return ""
    return f" ({retried:,} retried)" if retried < total else f" ({'all ' * (total > 1)}retried)"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


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
