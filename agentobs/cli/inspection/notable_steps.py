"""What `show` prints about the turns and steps of a long session: the notable turns, and the longest steps."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any, NamedTuple

from agentobs.cli.terminal.query_output import Rows, as_dicts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from agentobs.store.analysis.failed_steps import FailedSteps
    from agentobs.store.analysis.wall_time import Pause
    from agentobs.store.port import Store

    Row = Mapping[str, Any]

MOST_FAILED = 10
"""The maximum number of failed turns. Our choice: the whole output fits two screens."""
MOST_NOTABLE = 5
"""The number of slowest turns, and of most expensive turns. Our choice."""
MOST_LONGEST = 10
"""The number of longest steps. Our choice."""
_TIMED = frozenset(
    ("attempt", "tool_call", "permission", "command", "mcp_call", "retry_wait", "queued", "hook")
)
"""The kinds of steps, and the names of spans, that take time themselves. A permission is the wait for the user."""


class NotableTurns(NamedTuple):
    """Some turns of a session."""

    rows: Rows
    """The rows of `session_turns` in order, with the reasons in the column `notable`."""
    words: str
    """What they are: `failed (11 of 27), slow or expensive`."""


def notable_turns(turns: Rows, groups: Sequence[FailedSteps]) -> NotableTurns:
    """Return the failed, the slowest and the most expensive turns.

    If more turns failed than fit, each group of failed steps is represented by its first turns. The duration of a turn
    includes its tool calls.

    Args:
        turns: the rows of `session_turns`.
        groups: the failed steps, from `group_failed_steps`.
    """
    rows = as_dicts(turns)
    places = {(row["lane"], row["turn"]): at for at, row in enumerate(rows)}
    failed, denied = (
        [places[each] for each in dict.fromkeys(_failed_turns(found)) if each in places]
        for found in (
            [each for each in groups if not each.is_denied],
            [each for each in groups if each.is_denied],
        )
    )
    took = [(row["duration_ns"] or 0) + (row["tools_ns"] or 0) for row in rows]
    costs = {at: row["cost_usd"] for at, row in enumerate(rows) if row["cost_usd"]}
    slow, expensive = _largest(dict(enumerate(took))), _largest(costs)
    kinds = (("failed", failed), ("denied", denied), ("slow", slow), ("expensive", expensive))
    most = {"failed": MOST_FAILED, "denied": MOST_FAILED}
    chosen = sorted({at for word, found in kinds for at in found[: most.get(word)]})
    columns, values = turns
    shown = [
        (*values[at], ", ".join(word for word, found in kinds if at in found)) for at in chosen
    ]
    parts = [_share(word, found, chosen) for word, found in kinds if found]
    words = " or ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:])))
    return NotableTurns(([*columns, "notable"], shown), words)


def _share(word: str, found: Sequence[int], chosen: Sequence[int]) -> str:
    """Return why turns are listed, and how many of them are if some are not: `failed (11 of 27)`."""
    count = len(set(found) & set(chosen))
    return word if count == len(found) else f"{word} ({count:,} of {len(found):,})"


def longest_steps(
    steps: Sequence[Row], agents: Mapping[str, str], pauses: Sequence[Pause] = ()
) -> list[Row]:
    """Return the steps that took longest, without steps that contain other steps, and all pauses, the longest first.

    Args:
        steps: the rows of the timeline, from `shown_steps`.
        agents: the display names of the lanes of the session. A call that started a sub-agent contains its steps.
        pauses: the times without an interaction, from `named_pauses`. They become rows of the kind `pause`.
    """
    from agentobs.store.analysis.lane_names import agent_of_call

    timed = [
        row
        for row in steps
        if _took(row)
        and (row["kind"] if row["kind"] != "span" else row["name"]) in _TIMED
        and agent_of_call(str(row["lane"]), str(row["id"]), agents) is None
    ]
    longest = heapq.nlargest(MOST_LONGEST, timed, key=_took)
    return sorted([*longest, *map(_pause_row, pauses)], key=_took, reverse=True)


def pauses_of(store: Store, session_id: str) -> list[Pause]:
    """Return the times of a session without an interaction that are long enough to be named, see `named_pauses`."""
    from agentobs.store.analysis.wall_time import interaction_times, named_pauses

    [about] = store.rows("internal/session", session_id=session_id).dicts()
    splits = interaction_times(store, session_id)
    return named_pauses(splits, about["started_ns"], about["duration_ns"])


def _pause_row(pause: Pause) -> Row:
    """Return a pause as a row of the timeline; it belongs to no agent."""
    unknown = dict.fromkeys(("lane", "turn", "outcome", "error_type", "estimated_ns"))
    return {
        **unknown,
        "kind": "pause",
        "what": pause.words,
        "started_ns": pause.started_ns,
        "duration_ns": pause.duration_ns,
    }


def _took(step: Row) -> int:
    """Return the duration of a step, which may be an estimate; 0 if it is unknown."""
    return int(step["duration_ns"] or step.get("estimated_ns") or 0)


def _failed_turns(groups: Sequence[FailedSteps]) -> Iterator[tuple[str, int]]:
    """Yield the turns with failed steps: the first turn of each group, then the second ones, and so on."""
    for at in range(max((len(each.turns) for each in groups), default=0)):
        yield from ((each.lane, each.turns[at]) for each in groups if at < len(each.turns))


def _largest(values: Mapping[int, Any]) -> list[int]:
    return heapq.nlargest(MOST_NOTABLE, values, key=lambda at: (values[at], -at))
