"""Failure: why a session failed, the step that failed, and the steps just before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentobs.store.port import Store

Row = Mapping[str, Any]

STEPS_BEFORE = 5
"""The maximum number of steps before the failed step that are shown. Our choice: a request, its calls, and the step
before them.
"""


@dataclass(frozen=True, slots=True)
class Failure:
    """The failure of one session. Its texts are labels; other texts are replaced by digests."""

    row: Row
    """The row of the session in the view `failures`."""
    before: Sequence[Row]
    """The steps just before the failed step, or before the end if no step failed, oldest first; rows of
    `session_steps`. If a sub-agent failed, they are its last steps.
    """

    @property
    def facts(self) -> dict[str, Any]:
        """The known facts about the failed step, by name."""
        names = (
            "step_kind", "step_name", "step_lane", "step_turn", "step_outcome", "step_origin",
            "step_class", "step_file", "step_line", "step_status", "step_request_id",
            "step_limit_hit", "step_id",
        )  # fmt: skip
        known = {name.removeprefix("step_"): self.row[name] for name in names}
        return {name: value for name, value in known.items() if value is not None}


def explain_failure(
    store: Store, session_id: str, steps: Sequence[Row] | None = None
) -> Failure | None:
    """Return why a session failed; None if it did not fail.

    Args:
        store: the store.
        session_id: the session.
        steps: its rows of `session_steps`, if they were read before.
    """
    row = next(iter(store.rows("internal/failure", session_id=session_id).dicts()), None)
    if row is None:
        return None
    if steps is None:
        steps = list(store.rows("session_steps", session_id=session_id).dicts())
    return Failure(row, _before(steps, row))


def _before(steps: Sequence[Row], failure: Row) -> Sequence[Row]:
    """Return the steps before the failed step; before the end of the session if no step failed.

    If the failed step is the call of a sub-agent, the calls before it are those of other sub-agents, so its last steps
    are returned.
    """
    own = f"{failure['step_lane']}/{failure['step_id']}"
    inside = [step for step in steps if f"{step['lane']}/".startswith(f"{own}/")]
    if failure["step_kind"] == "tool_call" and inside:
        return inside[-STEPS_BEFORE:]
    at = len(steps)
    for index, step in enumerate(steps):
        kind = {"request": "attempt", "tool_call": "tool_call"}.get(step["kind"])
        is_place = (step["lane"], step["turn"]) == (failure["step_lane"], failure["step_turn"])
        if kind == failure["step_kind"] and step["id"] == failure["step_id"] and is_place:
            at = index
    return steps[max(at - STEPS_BEFORE, 0) : at]
