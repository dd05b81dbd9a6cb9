"""The list of the differences of two sessions: consecutive steps that only one session has are one row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from typing import Any

from agentobs.store.analysis.first_changes import failed_words, only_failed_in, side_of
from dashboards.app.store_view import Row
from dashboards.panels.pair_summary import row

MOST_TOOLS = 3
"""The number of tools that a row names. Our choice."""


def difference_rows(
    steps: Sequence[Row],
    different: Sequence[int],
    names: Mapping[str, str],
    failed_calls: Sequence[Set[str]],
) -> list[dict[str, Any]]:
    """Return the different steps as rows: first those with a step that failed in only one session, then those of
    several turns, then the others.

    Args:
        steps: all steps of the comparison, lane by lane.
        different: the numbers of the different steps, from 1, in the order in which they ended.
        names: the display names of the lanes.
        failed_calls: for each session, the IDs of the tool calls whose result is an error.
    """
    rows = []
    for run in difference_runs(steps, different):
        failed = [number for number in run if only_failed_in(steps[number - 1], failed_calls)]
        first = (failed or run)[0]
        known = {**row(steps[first - 1]), "number": first, "numbers": run, "steps": len(run)}
        known["lane_name"] = names.get(known["lane"], known["lane"])
        known["failed"] = _failures([steps[number - 1] for number in failed], failed_calls)
        turns = _turns(steps, run)
        known["turns"] = turns and _turn_words(turns)
        known["tools"] = _tools(steps, run)
        rank = 0 if failed else 1 if turns and turns[0] < turns[1] else 2
        rows.append((rank, known))
    return [known for _, known in sorted(rows, key=lambda each: each[0])]


def _failures(failed: Sequence[Row], failed_calls: Sequence[Set[str]]) -> str:
    """Return which steps of a row failed, such as `refund failed`; empty if none did."""
    found = Counter(_failure(step, failed_calls) for step in failed)
    words = [
        f"{each} {f'({count:,} times)' if count > 1 else ''}".rstrip()
        for each, count in found.items()
    ]
    more = len(words) - MOST_TOOLS
    return ", ".join(words[:MOST_TOOLS]) + (f" and {more:,} more" if more > 0 else "")


def _failure(step: Row, failed_calls: Sequence[Set[str]]) -> str:
    side = side_of(step)
    name = "request" if side["kind"] == "request" else str(side["name"])
    verb = failed_words(step, failed_calls)
    is_common = step["change"] in ("same", "changed")
    return f"{name} {verb}{f' only in {only_failed_in(step, failed_calls)}' if is_common else ''}"


def _turn_words(turns: tuple[int, int]) -> str:
    first, last = turns
    return f"turn {first:,}" if first == last else f"turns {first:,} to {last:,}"


def _turns(steps: Sequence[Row], run: Sequence[int]) -> tuple[int, int] | None:
    """Return the first and the last turn of steps: those of the main agent if it has any of them."""
    sides = [side_of(steps[number - 1]) for number in run]
    known = [each for each in sides if each.get("turn") is not None]
    turns = [each["turn"] for each in known if each["lane"] == "main"]
    turns = turns or [each["turn"] for each in known]
    return (min(turns), max(turns)) if turns else None


def _tools(steps: Sequence[Row], run: Sequence[int]) -> str:
    """Return the names of the called tools, the most frequent ones first."""
    sides = (side_of(steps[number - 1]) for number in run)
    tools = Counter(str(each["name"]) for each in sides if each["kind"] == "tool_call")
    named = [name for name, _ in tools.most_common(MOST_TOOLS)]
    return ", ".join(named) + (" and others" if len(tools) > MOST_TOOLS else "")


def difference_runs(steps: Sequence[Row], different: Sequence[int]) -> list[list[int]]:
    """Return the numbers of different steps in runs of steps that only one session has. A run ends at a step of one of
    its lanes that both sessions have, unless the steps after it are of the same turn as those before it.

    Args:
        steps: all steps of a comparison, lane by lane.
        different: the numbers of the different steps, from 1, in the order in which they are listed.
    """
    before = _common_steps_before(steps)
    found: list[list[int]] = []
    open_runs: dict[str, tuple[list[int], dict[str, int], dict[str, int | None]]] = {}
    for number in different:
        step = steps[number - 1]
        change, side = step["change"], side_of(step)
        lane, turn = side["lane"], side.get("turn")
        run, common, last = open_runs.get(change, ([], {}, {}))
        if lane in common:
            is_same_turn = turn is not None and last[lane] == turn
            is_next = is_same_turn or common[lane] == before[number - 1]
        else:
            is_next = bool(found) and found[-1] is run
        if change != "changed" and run and is_next:
            run.append(number)
        else:
            run, common, last = [number], {}, {}
            found.append(run)
        common[lane], last[lane] = before[number - 1], turn
        open_runs[change] = run, common, last
    return found


def _common_steps_before(steps: Sequence[Row]) -> list[int]:
    """Return for each step how many steps of its lane before it both sessions have."""
    found, common = list[int](), Counter[str]()
    for step in steps:
        lane = side_of(step)["lane"]
        found.append(common[lane])
        common[lane] += step["change"] in ("same", "changed")
    return found
