"""Failed steps: the errors of a session, grouped by what failed, with which error, and where; and their numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
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
    def is_denied(self) -> bool:
        """Whether they are tool calls that were denied, and did not fail."""
        return is_denied({"kind": self.kind, "outcome": self.outcome})

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
_DENIED = ("denied", "blocked")
"""Outcomes of tool calls that a person, a rule or a hook did not permit; the views and queries have the same ones."""


def has_failed(step: Row) -> bool:
    """Return whether the outcome of a step is a failure or a denial."""
    return is_denied(step) or (step["kind"] != "decision" and step["outcome"] not in _SUCCESSFUL)


def is_denied(step: Row) -> bool:
    """Return whether a permission decision denied a call, or whether a tool call was denied: it did not run, because a
    person, a rule or a hook did not permit it.

    A denied call counts as denied and not as failed, whether or not the model gets its result as an error.
    """
    outcome = str(step["outcome"])
    if step["kind"] == "decision":
        return outcome.startswith("deny")
    return step["kind"] == "tool_call" and outcome in _DENIED


def call_notes(failed: int, denied: int) -> str:
    """Return how many tool calls failed and were denied, as a note after their number: `3 failed, 5 denied`."""
    notes = ((failed, "failed"), (denied, "denied"))
    return ", ".join(f"{number:,} {word}" for number, word in notes if number)


def nothing_failed(
    status: str,
    steps: Sequence[Row],
    failed_operations: Callable[[], Sequence[Row]],
    *,
    is_imported: bool,
) -> str:
    """Return a sentence, without a full stop, that nothing failed in a session; empty if it did not complete, if any
    operation failed or was denied, or if it has no steps.

    Args:
        status: the status of the session.
        steps: the rows of `session_steps`.
        failed_operations: returns the row of `internal/failed_operations`; only called if no step failed.
        is_imported: whether the session was imported from a log, which contains no HTTP statuses of its requests.
    """
    if status != "completed" or any(map(has_failed, steps)):
        return ""
    if any(row["failures"] for row in failed_operations()):
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
    """Return the number of failed steps of a kind, `attempt` or `tool_call`, in groups, without denied calls."""
    return sum(each.count for each in groups if each.kind == kind and not each.is_denied)


def number_denied(groups: Iterable[FailedSteps]) -> int:
    """Return the number of denied tool calls in groups."""
    return sum(each.count for each in groups if each.is_denied)


def counted_failures(groups: Sequence[FailedSteps]) -> str:
    """Return how many tool calls and request attempts failed, and how many calls were denied:
    `26 tool calls and 5 request attempts (all retried) failed, and 2 tool calls were denied`.
    """
    calls, attempts = (number_failed(groups, kind) for kind in ("tool_call", "attempt"))
    parts = [_count(calls, "tool call")] if calls else []
    if attempts:
        parts.append(f"{_count(attempts, 'request attempt')}{_retried(groups)}")
    failed = f"{listed(parts)} failed" if parts else ""
    return ", and ".join(filter(None, (failed, _denied(number_denied(groups)))))


def _denied(number: int, of: str = "tool call") -> str:
    """Return how many calls were denied, in words; empty if none was."""
    return f"{_count(number, of)} {'was' if number == 1 else 'were'} denied" if number else ""


def failures_by_way(groups: Sequence[FailedSteps]) -> str:
    """Return how many tool calls and request attempts failed, and in which ways: by tool or model, and error class;
    and how many calls of which tools were denied.

    `26 failed tool calls: 20 look (invalid), 6 fetch (timeout); 2 denied tool calls: all refund`. Empty if nothing
    failed.
    """
    sentences = []
    for kind, has_denied, noun, rest in (
        ("tool_call", False, "failed tool call", ""),
        ("tool_call", True, "denied tool call", ""),
        ("attempt", False, "failed request attempt", _retried(groups)),
    ):
        ways = Counter[str]()
        for each in groups:
            if (each.kind, each.is_denied) == (kind, has_denied):
                ways[_way(each)] += each.count
        if ways:
            sentences.append(f"{_count(ways.total(), noun)}{rest}: {_ways(ways)}")
    return "; ".join(sentences)


@dataclass(frozen=True, slots=True)
class FailedCalls:
    """The failed and the denied tool calls of a session, and its requests without a response."""

    count: int = 0
    """The number of failed calls, without denied ones."""
    tool: str | None = None
    """The tool that failed most often; None if unknown."""
    of_tool: int = 0
    """The number of failed calls of this tool."""
    requests: int = 0
    """The number of requests of which all attempts failed."""
    denied: int = 0
    """The number of denied calls."""
    denied_tool: str | None = None
    """The tool that was denied most often; None if unknown."""
    of_denied_tool: int = 0
    """The number of denied calls of this tool."""

    @property
    def words(self) -> str:
        """The numbers of failed and denied tool calls with the most frequent tool of each, and the number of failed
        requests: `3 tool calls failed, 2 of search; 5 calls of refund were denied; 1 request failed`.
        """
        calls = _most_frequent(self.count, self.tool, self.of_tool, "failed")
        denied = _most_frequent(
            self.denied,
            self.denied_tool,
            self.of_denied_tool,
            "was denied" if self.denied == 1 else "were denied",
        )
        requests = f"{_count(self.requests, 'request')} failed" if self.requests else ""
        return "; ".join(filter(None, (calls, denied, requests)))


def _most_frequent(number: int, tool: str | None, of_tool: int, verb: str) -> str:
    if not number:
        return ""
    if tool is not None and of_tool == number:
        return f"{_count(number, 'call')} of {tool} {verb}"
    most = f", {of_tool:,} of {tool}" if tool and of_tool > 1 else ""
    return f"{_count(number, 'tool call')} {verb}{most}"


def failed_calls(
    store: Store, session_ids: Sequence[str], restore: Callable[[Any], Any] = list
) -> dict[str, FailedCalls]:
    """Return the failed and denied tool calls and the failed requests of sessions, by session ID; only of sessions with
    any.

    Args:
        store: the store.
        session_ids: the sessions.
        restore: returns rows with the original texts instead of digests.
    """
    ids = {"session_ids": list(session_ids)}
    found: dict[str, FailedCalls] = {}
    for row in restore(store.rows("internal/failed_calls", **ids).dicts()):
        number, tool, of_tool = row["calls"], row["tool"], row["tool_calls"] or 0
        known = found.get(row["session_id"], FailedCalls())
        if row["is_denied"]:
            known = replace(known, denied=number, denied_tool=tool, of_denied_tool=of_tool)
        else:
            known = replace(known, count=number, tool=tool, of_tool=of_tool)
        found[row["session_id"]] = known
    for session_id, number in store.rows("internal/failed_requests", **ids).rows:
        found[session_id] = replace(found.get(session_id, FailedCalls()), requests=number)
    return found


def _way(group: FailedSteps) -> str:
    name = "without a name" if not group.name or group.name.startswith(DIGEST) else group.name
    if group.is_denied:
        return name
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
