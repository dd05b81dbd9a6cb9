"""Why requests and sub-agents failed, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from agentobs.records.labels import DIGEST
from agentobs.records.request_failures import request_failure
from agentobs.store.analysis.lane_names import AUXILIARY
from agentobs.store.analysis.unfinished_turns import UnfinishedTurns, of_outcomes
from dashboards.figures.phrases import count
from dashboards.panels.trace_tree import TraceTree

_RUN_RESULTS = {
    "error_max_turns": "turn limit reached",
    "error_max_budget_usd": "budget used up",
    "error_during_execution": "error during execution",
    "error_max_structured_output_retries": "no valid structured output",
}
"""How runs of an agent end without success, in words."""


def unfinished_turns(tree: TraceTree) -> UnfinishedTurns | None:
    """Return how many turns got no complete response; None if all got one."""
    complete, outcomes = set[tuple[str, int]](), dict[tuple[str, int], str]()
    for node in map(tree.node, tree.order):
        if node.kind == "request" and node.turn is not None and not AUXILIARY.search(node.lane):
            if node.state == "failed":
                outcomes[node.lane, node.turn] = node.detail
            else:
                complete.add((node.lane, node.turn))
    return of_outcomes([text for turn, text in outcomes.items() if turn not in complete])


def run_result(result: str, turns: int | None = None) -> str:
    """Return in words how a run of an agent ended.

    Args:
        result: the result, such as `error_max_turns`.
        turns: the number of its turns, for a limit of turns.
    """
    words = _RUN_RESULTS.get(result, result.removeprefix("error_").replace("_", " "))
    return f"{words} ({count(turns, 'turn')})" if result == "error_max_turns" and turns else words


class FailureReason(NamedTuple):
    """Why a session failed, for the header and the banner of its page."""

    words: str
    """In words how the request failed that failed the session; empty if another step failed."""
    note: str
    """What the banner adds to the failed step; empty if there is nothing to add."""
    text: str
    """Both in one line, as in `agentobs sessions`."""


def failure_reason(row: Mapping[str, Any]) -> FailureReason:
    """Return why a session failed.

    Args:
        row: the row of `failures`, with the original texts.
    """
    words, note = failure_words(row), failure_note(row)
    if row["cause"] == "result" and row["reason"]:
        return FailureReason(words, note, str(row["reason"]))
    declared = str(row["summary"] or row["reason"] or "")
    text = "; ".join(filter(None, (words, note))) if words else declared
    return FailureReason(words, note, text)


def failure_words(row: Mapping[str, Any]) -> str:
    """Return in words how the request failed that failed a session; empty if another step failed.

    Args:
        row: the row of `failures`, with the original texts.
    """
    if row["step_kind"] != "attempt" or row["step_outcome"] in (None, "unfinished"):
        return ""
    # The text of a class that the program did not declare may have been deleted.
    error_class = row["step_class"] if not str(row["step_class"]).startswith(DIGEST) else None
    return request_failure(str(row["step_outcome"]), error_class, row["step_status"])


def failure_note(row: Mapping[str, Any]) -> str:
    """Return the part of the summary of a failure that does not repeat the failed step; empty if there is none.

    Args:
        row: the row of `failures`, with the original texts.
    """
    parts = str(row["summary"] or "").split("; ")
    if row["step_kind"] is None:
        return "; ".join(parts)
    if row["cause"] == "result" or len(parts) < 2:
        return ""
    note = parts[-1] if row["cause"] == "declared" else parts[0]
    return "" if note == row.get("error_class") and not row.get("step_class") else note
