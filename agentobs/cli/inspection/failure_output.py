"""Printing of why a session failed, for the commands that show or diagnose a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from agentobs.cli.terminal.query_output import as_dicts, with_texts
from agentobs.cli.terminal.tables import print_line, show_table
from agentobs.records.display import pretty, printable, text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentobs.store.port import Store

_BEFORE = ("lane", "turn", "step", "outcome", "duration_ns")
_FAILED = ("failed", "http_error", "cut", "error", "timed_out")
"""The outcomes of tool calls and requests that failed."""
_WORDS = {"request": "request", "tool_call": "tool call", "decision": "permission"}


def failure_of(store: Store, session_id: str) -> dict[str, Any] | None:
    """Return the failure of a session for display: the row of `failures`, `step` and `before`; None if it did not
    fail.
    """
    from agentobs.store.analysis.failure import explain_failure

    failure = explain_failure(store, session_id)
    if failure is None:
        return None
    [row] = _restored([failure.row])
    return {**row, "step": _restored([failure.facts])[0], "before": _restored(failure.before)}


def print_failure(failure: Mapping[str, Any]) -> None:
    """Print why a session failed, the step that failed, and the steps before it; see `failure_of`."""
    print_line(failure_line(failure))
    if failure["step"]:
        print_line(f"failed step: {_failed_step(failure['step'])}")
    elif last := next(filter(_has_failed, reversed(failure["before"])), None):
        print_line(f"last failed step: {_cell(last, 'step')}{_place(last['turn'], last['lane'])}")
    if failure["before"]:
        click.echo("just before:")
        rows = [[_cell(step, name) for name in _BEFORE] for step in failure["before"]]
        show_table(["lane", "turn", "step", "outcome", "duration"], rows)


def failure_line(failure: Mapping[str, Any]) -> str:
    """Return the status and the cause in one line."""
    return f"{failure['status']}: {printable(str(failure['summary']))}"


def _failed_step(step: Mapping[str, Any]) -> str:
    """Return the failed step in one line: what it was, its place, and its error."""
    what = "tool call" if step["kind"] == "tool_call" else "request to"
    place = step.get("file")
    line = f":{step['line']}" if step.get("line") is not None else ""
    facts = (
        f"{text(step['outcome'])} {text(step['class'])}" if "class" in step else step["outcome"],
        f"at {text(place)}{line}" if place else None,
        f"HTTP {step['status']}" if "status" in step else None,
        f"{text(step['limit_hit'])} limit" if "limit_hit" in step else None,
        f"request ID {text(step['request_id'])}" if "request_id" in step else None,
    )
    shown = ", ".join(text(each) for each in facts if each)
    return f"{what} {text(step['name'])}{_place(step.get('turn'), step.get('lane'))}: {shown}"


def _has_failed(step: Mapping[str, Any]) -> bool:
    return step["kind"] != "decision" and step["outcome"] in _FAILED


def _place(turn: int | None, lane: str | None) -> str:
    place = f" of {text(lane)}" if lane is not None else ""
    return f" in turn {turn:,}{place}" if turn is not None else ""


def _cell(step: Mapping[str, Any], name: str) -> Any:
    if name != "step":
        return pretty(name, step[name])
    subject = step["model"] if step["kind"] == "request" and step["model"] else step["name"]
    return f"{_WORDS[step['kind']]} {subject}"


def _restored(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows with the texts in place of the digests."""
    return [as_dicts(with_texts((list(row), [tuple(row.values())])))[0] for row in rows]
