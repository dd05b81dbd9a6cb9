"""The recent runs of tools in a conversation, from which withdrawals and the circuit breakers of services follow.

A tool is withdrawn after a number of consecutive failures. The tools of a service share a circuit breaker: it opens
after a number of consecutive failures of any of them, lets one call through after a cool-down, and closes after a
success.
Both are functions of the recent runs, so that a resumed conversation continues with the same state.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentobs.errors import UsageError
from agentobs.records.canonical_json import Json
from agentobs.records.exchanges import ToolOutcome
from agentobs.records.labels import is_label

FAILURES_MAX = 100
"""The highest number of failures that a limit may require, and the number of failures that are kept for each tool. Our
choice.
"""

COOL_DOWN_S = 60.0
"""The default cool-down of a service, in seconds. Our choice: the same as that of the circuit breaker for the provider.
"""


@dataclass(frozen=True, slots=True)
class Service:
    """A service that several tools use, with one circuit breaker for all of them."""

    name: str
    """The name of the service, a label."""
    failures: int = 5
    """The number of consecutive failures that opens the breaker. Our choice."""
    cool_down_s: float | None = None
    """How long the breaker stays open after the last failure, in seconds; default 60, unless `cool_down_turns` is set.
    """
    cool_down_turns: int | None = None
    """For how many turns after the last failure the breaker stays open."""

    def __post_init__(self) -> None:
        """Validate the fields, and set the default cool-down.

        Raises:
            UsageError: a field is invalid, or both cool-downs are set.
        """
        if not isinstance(self.name, str) or not is_label(self.name):
            raise UsageError(
                f"the name of the service {self.name!r} is not a label",
                where="Service",
                todo="Use A-Z a-z 0-9 . _ : / @ -",
            )
        where = f"Service {self.name}"
        if not is_failure_limit(self.failures):
            found = f"failures is {self.failures!r}"
            raise UsageError(found, where=where, todo=f"Set 1 to {FAILURES_MAX}")
        seconds, turns = self.cool_down_s, self.cool_down_turns
        if seconds is not None and turns is not None:
            raise UsageError(
                "it has two cool-downs",
                where=where,
                todo="Set only one of cool_down_s and cool_down_turns",
            )
        if seconds is not None and not _is_duration(seconds):
            found = f"cool_down_s is {seconds!r}"
            raise UsageError(found, where=where, todo="Set seconds above 0")
        if turns is not None and (type(turns) is not int or turns < 1):
            found = f"cool_down_turns is {turns!r}"
            raise UsageError(found, where=where, todo="Set 1 or more")
        if turns is None and seconds is None:
            object.__setattr__(self, "cool_down_s", COOL_DOWN_S)


def is_failure_limit(value: object) -> bool:
    """Return whether a value is valid as a number of consecutive failures."""
    return type(value) is int and 1 <= value <= FAILURES_MAX


def _is_duration(value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and value > 0  # type: ignore[arg-type, operator]


@dataclass(frozen=True, slots=True)
class ToolRun:
    """One run of a tool."""

    tool: str
    """The name of the tool."""
    has_failed: bool
    turn: int
    """The turn of the conversation."""
    at_ns: int
    """When the result was known, in nanoseconds since 1970."""


@dataclass(frozen=True, slots=True)
class Streak:
    """The most recent consecutive failures of some tools."""

    count: int = 0
    last: ToolRun | None = None
    """The last of them."""


@dataclass(frozen=True, slots=True)
class ToolRuns:
    """The recent runs of a conversation: for each tool, its last success and the failures since then."""

    runs: tuple[ToolRun, ...] = ()
    """The runs, oldest first."""

    def after(self, runs: Iterable[ToolRun]) -> ToolRuns:
        """Return the recent runs after further runs, in order."""
        kept = list(self.runs)
        for run in runs:
            if not run.has_failed:
                kept = [each for each in kept if each.tool != run.tool]
            kept.append(run)
            failed = [each for each in kept if each.has_failed and each.tool == run.tool]
            if len(failed) > FAILURES_MAX:
                kept.remove(failed[0])
        return ToolRuns(tuple(kept))

    def failures_of(self, tools: Collection[str]) -> Streak:
        """Return the failures since the last success of any of these tools."""
        count, last = 0, None
        for run in reversed(self.runs):
            if run.tool not in tools:
                continue
            if not run.has_failed:
                break
            count, last = count + 1, last or run
        return Streak(count, last)

    def in_turn(self, turn: int) -> ToolRuns:
        """Return the same runs in the count of turns of another conversation, as if all were made in one turn."""
        return ToolRuns(tuple(replace(run, turn=turn) for run in self.runs))

    def since(self, earlier: ToolRuns) -> list[ToolRun]:
        """Return the runs that were added to `earlier`, whose turns may have another count."""
        known = {(run.tool, run.has_failed, run.at_ns) for run in earlier.runs}
        return [run for run in self.runs if (run.tool, run.has_failed, run.at_ns) not in known]

    def as_json(self) -> list[Json]:
        """Return the runs as JSON; empty if no tool has failed since its last success."""
        if not any(run.has_failed for run in self.runs):
            return []
        return [[run.tool, run.has_failed, run.turn, run.at_ns] for run in self.runs]

    @classmethod
    def from_json(cls, values: Sequence[Any]) -> ToolRuns:
        """Return the runs that `as_json` has written."""
        return cls(tuple(ToolRun(*value) for value in values))


def has_failed(outcome: ToolOutcome) -> bool | None:
    """Return whether an outcome is a failure of the tool; None if the tool has not run to its end."""
    if outcome in ("failed", "timeout"):
        return True
    return False if outcome == "executed" else None
