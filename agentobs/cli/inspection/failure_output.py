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
    print_line(f"{failure['status']}: {printable(str(failure['summary']))}")
    if failure["step"]:
        facts = (f"{name.replace('_', ' ')} {text(value)}" for name, value in _step(failure))
        print_line(f"failed step: {', '.join(facts)}")
    if failure["before"]:
        click.echo("just before:")
        rows = [[_cell(step, name) for name in _BEFORE] for step in failure["before"]]
        show_table(["lane", "turn", "step", "outcome", "duration"], rows)


def _step(failure: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in failure["step"].items() if name != "id"]


def _cell(step: Mapping[str, Any], name: str) -> Any:
    if name != "step":
        return pretty(name, step[name])
    subject = step["model"] if step["kind"] == "request" and step["model"] else step["name"]
    return f"{_WORDS[step['kind']]} {subject}"


def _restored(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows with the texts in place of the digests."""
    return [as_dicts(with_texts((list(row), [tuple(row.values())])))[0] for row in rows]
