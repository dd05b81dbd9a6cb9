"""The summary of a session in a few lines: what it is, its totals, and what is unusual about its recording."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentobs.cli.terminal.instants import local_instant, zone_name
from agentobs.records.display import (
    COST_MARKS,
    certain_money,
    has_partial_counts,
    printable,
    seconds,
    share,
)
from agentobs.store.analysis.unfinished_turns import turns_in_words, unfinished_turns

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentobs.store.analysis.failed_steps import FailedSteps

    Row = Mapping[str, Any]

_COUNTS = "unlogged_"
"""The start of the tags with which an import counts what a log does not contain."""


def summary_facts(
    about: Row,
    title: str | None,
    git: Sequence[Row],
    costs: Sequence[Row],
    failed_steps: Sequence[FailedSteps],
    unfinished: Sequence[Row] = (),
    source: str | None = None,
) -> list[tuple[str, str]]:
    """Return names and values of the facts that everybody needs about a session; all facts are shown on request.

    Args:
        about: the row of the session.
        title: its title, or None.
        git: the row about its git repository, if it is known.
        costs: its row of `cost_by_session`, if it has calls.
        failed_steps: its failed and denied steps, from `group_failed_steps`.
        unfinished: its rows of `internal/unfinished_turns`.
        source: `recorded`, or the program from whose log it was imported; None if unknown.
    """
    facts = [
        ("session", printable(" ".join(filter(None, (about["name"], about["session_id"]))))),
        ("title", printable(title) if title else None),
        ("status", _status(about)),
        ("code", _code(git[0]) if git else None),
        ("tags", _tags(about)),
        ("totals", _totals(about, costs[0] if costs else None, failed_steps, unfinished)),
        ("tokens", token_counts(about, costs[0] if costs else None)),
        ("recording", _unusual(about, source)),
    ]
    return [(name, value) for name, value in facts if value]


def _status(about: Row) -> str:
    status = printable(str(about["status"]))
    started = f"{local_instant(about['started_ns'])} ({zone_name()})"
    return f"{status}, started {started}"


def _code(git: Row) -> str:
    """Return the branch and the commit."""
    parts = (
        f"branch {git['branch']}" if git.get("branch") else None,
        f"commit {git['commit'][:12]}" if git.get("commit") else None,
        "with uncommitted changes" if git.get("dirty") else None,
    )
    return printable(" ".join(filter(None, parts)))


def _tags(about: Row) -> str:
    return printable(
        ", ".join(f"{key}={value}" for key, value in own_tags(about["tags"] or {}).items())
    )


def own_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """Return the tags of a session, except those that differ in each session: its ID, and numbers of records."""
    from agentobs.proxy.client_sessions import CLIENT_TAG

    return {
        key: value
        for key, value in tags.items()
        if key != CLIENT_TAG and not key.startswith(_COUNTS)
    }


def _totals(
    about: Row, cost: Row | None, failed_steps: Sequence[FailedSteps], unfinished: Sequence[Row]
) -> str:
    """Return duration, cost, turns and tool calls."""
    from agentobs.store.analysis.failed_steps import call_notes, number_denied, number_failed

    notes = call_notes(number_failed(failed_steps, "tool_call"), number_denied(failed_steps))
    calls = _count(about["tool_calls"], "tool call")
    spent = certain_money(cost["cost_usd"], cost["cost_status"]) if cost else None
    parts = (
        seconds(about["duration_ns"]),
        spent or "unknown cost",
        turns_in_words(about["turns"], unfinished_turns(unfinished)),
        f"{calls} ({notes})" if notes else calls,
    )
    return ", ".join(filter(None, parts))


def token_counts(about: Row, cost: Row | None) -> str:
    """Return the input and output tokens. If a response was cut, its output tokens are a lower bound."""
    least = COST_MARKS["lower_bound"] if cost and has_partial_counts(cost) else ""
    cached = about["cache_read_tokens"] or 0
    total = (about["input_tokens"] or 0) + cached + (about["cache_write_tokens"] or 0)
    read = f" ({share(cached, total)} read from the cache)" if cached else ""
    partly = cost.get("lower_bound_calls") if cost and least else 0
    note = (
        f" (usage of {partly:,} of {_count(cost['calls'], 'call')} is only partly known)"
        if cost and partly
        else ""
    )
    return f"{total:,} input{read}, {least}{about['output_tokens'] or 0:,} output{note}"


def _unusual(about: Row, source: str | None) -> str:
    """Return what distinguishes the recording from a complete recording of its own; empty if nothing does."""
    continued = about["continues_session_id"]
    relation = {"resume": "continues session", "fork": "starts like session"}
    replayed, dropped, unpriced = (
        about[n] for n in ("replayed_requests", "dropped", "unpriced_calls")
    )
    parts = (
        f"imported from a log of {source}" if source not in (None, "recorded") else None,
        f"{relation.get(str(about['relation']), 'follows session')} {continued}"
        if continued
        else None,
        f"{_count(replayed, 'request')} replayed" if replayed else None,
        f"{_count(dropped, 'record')} dropped" if dropped else None,
        f"{_count(unpriced, 'request')} without a known price" if unpriced else None,
        "only received telemetry" if about["is_telemetry"] else None,
    )
    return printable(", ".join(filter(None, parts)))


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"
