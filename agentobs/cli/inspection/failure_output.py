"""Printing of why a session failed, for the commands that show or diagnose a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from agentobs.cli.terminal.query_output import agent_names, as_dicts, with_texts
from agentobs.cli.terminal.tables import print_line, show_table
from agentobs.records.display import estimated, pretty, printable, text
from agentobs.records.request_failures import UNFINISHED_OUTCOMES, outcome_words, request_failure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentobs.store.analysis.failed_steps import FailedSteps
    from agentobs.store.port import Store

_BEFORE = ("lane", "turn", "step", "outcome", "duration_ns")
_FAILED = ("failed", "http_error", "cut", "error", "timed_out")
"""The outcomes of tool calls and requests that failed."""
FAILED_STYLE = "bold red"
"""The style of the line with the cause of a failure."""
_WARNING_STYLE = "bold yellow"
MOST_GROUPS = 5
"""The maximum number of groups of failed steps that are printed. Our choice: a few lines."""
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


def print_failure(failure: Mapping[str, Any], agents: Mapping[str, str]) -> None:
    """Print why a session failed, the step that failed, and the steps before it.

    Args:
        failure: the failure, from `failure_of`.
        agents: the display names of sub-agents, by lane.
    """
    from agentobs.store.analysis.failed_steps import is_denied

    print_line(failure_line(failure), FAILED_STYLE)
    before = [_named(step, agents) for step in failure["before"]]
    if failure["step"]:
        # After a result such as `max_turns`, the step is only the last one that failed.
        name = f"{'denied' if is_denied(failure['step']) else 'failed'} step"
        name = f"last {name}" if failure["cause"] == "result" else name
        print_line(f"{name}: {_failed_step(_named(failure['step'], agents))}")
    elif last := next(filter(_has_failed, reversed(before)), None):
        print_line(f"last failed step: {_cell(last, 'step')}{_place(last['turn'], last['lane'])}")
    if before:
        click.echo("just before:")
        rows = [[_cell(step, name) for name in _BEFORE] for step in before]
        show_table(["lane", "turn", "step", "outcome", "duration"], rows)


def failed_steps_of(
    store: Store, session_id: str, turns: Sequence[Mapping[str, Any]]
) -> list[FailedSteps]:
    """Return the failed steps of a session in groups, given its rows of `session_turns`."""
    from agentobs.store.analysis.failed_steps import group_failed_steps

    errors = store.rows("session_errors", session_id=session_id)
    return group_failed_steps(_restored(errors.dicts()), turns)


def print_outcome(
    store: Store,
    session_id: str,
    failure: Mapping[str, Any] | None,
    status: str,
    groups: Sequence[FailedSteps],
    *,
    with_status: bool = False,
) -> bool:
    """Print why a session failed and its failed steps, or that nothing failed. Return whether anything was printed.

    Args:
        store: the store.
        session_id: the session.
        failure: the failure, from `failure_of`.
        status: the status of the session.
        groups: its failed steps, from `failed_steps_of`.
        with_status: whether to print the status even if nothing else is known.
    """
    from agentobs.store.analysis.failed_steps import nothing_failed

    agents = agent_names(store, session_id)
    if failure is not None:
        print_failure(failure, agents)
    if groups and (failure is None or sum(each.count for each in groups) > 1):
        print_failed_steps(groups, agents, status if failure is None else None)
    if failure is not None or groups:
        return True
    steps = store.rows("session_steps", session_id=session_id).dicts()
    source = store.rows("internal/content_state", session_id=session_id).dicts()[0]["source"]
    words = nothing_failed(
        status,
        steps,
        lambda: store.rows("internal/failed_operations", session_id=session_id).dicts(),
        is_imported=source not in (None, "recorded"),
    )
    if with_status:
        words = ". ".join(filter(None, (status, words)))
    if words:
        print_line(words)
    return bool(words)


def print_failed_steps(
    groups: Sequence[FailedSteps], agents: Mapping[str, str], status: str | None
) -> None:
    """Print how many steps failed or were denied, with which error and where, one line per group.

    Args:
        groups: the failed steps, from `group_failed_steps`.
        agents: the display names of sub-agents, by lane.
        status: the status of a session that did not fail; None if its failure was printed before.
    """
    from agentobs.store.analysis.failed_steps import counted_failures

    counted = counted_failures(groups)
    if status is None:
        click.echo(f"{counted} in this session:")
    else:
        print_line(f"{status}, but {counted}:", _WARNING_STYLE)
    for group in groups[:MOST_GROUPS]:
        print_line(_group_line(group, agents))
    if rest := groups[MOST_GROUPS:]:
        click.echo(f"  and {sum(each.count for each in rest):,} more with other errors or places")


def _group_line(group: FailedSteps, agents: Mapping[str, str]) -> str:
    """Return a group of failed steps in one line: how many, what, the error and the place."""
    from agentobs.store.analysis.failed_steps import NO_CLASS
    from agentobs.store.analysis.lane_names import agent_of_call

    started = agent_of_call(group.lane, group.ids[0], agents) if group.count == 1 else None
    if group.kind == "attempt":
        what = f"request to {text(group.name)}"
    elif started is not None:
        what = f"sub-agent {text(started)}"
    else:
        what = f"call {text(group.name)}"
    # Several calls without a known error class may have failed in different ways.
    is_unknown = group.error == "failed" and group.count > 1
    error = NO_CLASS if is_unknown else text(group.error)
    line = f":{group.line}" if group.line is not None else ""
    place = f" at {text(group.file)}{line}" if group.file else ""
    lane = agents.get(group.lane, group.lane)
    where = [] if lane == "main" else [f"sub-agent {text(lane)}"]
    if group.turns:
        where.append(_turns(group.turns))
    retried = ""
    if group.retried:
        share = "all " if group.retried == group.count else f"{group.retried:,} "
        retried = f", {share if group.count > 1 else ''}retried"
    return f"  {group.count:,} × {what}: {error}{place} ({', '.join(where)}){retried}".replace(
        " ()", ""
    )


def _turns(turns: Sequence[int]) -> str:
    """Return turns in words: `turn 3`, `turns 1 and 4`, `turns 6 to 9`, `26 turns, the first 37 and the last 999`."""
    if len(turns) == 1:
        return f"turn {turns[0]:,}"
    if len(turns) > 2 and turns[-1] - turns[0] >= len(turns):
        return f"{len(turns):,} turns, the first {turns[0]:,} and the last {turns[-1]:,}"
    joint = "and" if len(turns) == 2 else "to"
    return f"turns {turns[0]:,} {joint} {turns[-1]:,}"


def failure_line(failure: Mapping[str, Any]) -> str:
    """Return the status and the cause in one line."""
    return f"{failure['status']}: {printable(str(failure['summary']))}"


def _failed_step(step: Mapping[str, Any]) -> str:
    """Return the failed step in one line: what it was, its place, and its error."""
    what = "tool call" if step["kind"] == "tool_call" else "request to"
    place = step.get("file")
    line = f":{step['line']}" if step.get("line") is not None else ""
    if step["kind"] == "attempt" and step["outcome"] in UNFINISHED_OUTCOMES:
        outcome = request_failure(str(step["outcome"]), step.get("class"), step.get("status"))
    else:
        outcome = " ".join(text(step[name]) for name in ("outcome", "class") if name in step)
    facts = (
        outcome,
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


def _named(step: Mapping[str, Any], agents: Mapping[str, str]) -> dict[str, Any]:
    """Return a step with the display name of its lane in place of the lane."""
    lane = step.get("lane")
    return {**step, **({} if lane is None else {"lane": agents.get(lane, lane)})}


def _cell(step: Mapping[str, Any], name: str) -> Any:
    if name == "outcome" and step["kind"] == "request":
        return outcome_words(str(step["outcome"]))
    if name != "step":
        return estimated(name, step[name], step) or pretty(name, step[name])
    subject = step["model"] if step["kind"] == "request" and step["model"] else step["name"]
    return f"{_WORDS[step['kind']]} {subject}"


def _restored(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows with the texts in place of the digests."""
    return [as_dicts(with_texts((list(row), [tuple(row.values())])))[0] for row in rows]
