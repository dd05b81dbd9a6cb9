"""The head of a comparison: how each session ended, the first changes, and which models were replaced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentobs.store.analysis.failed_steps import is_denied
from agentobs.store.analysis.first_changes import model_words, step_place
from dashboards.app.comparison.compared_session import ComparedSession
from dashboards.app.store_view import Row
from dashboards.panels.pair_summary import ending


@dataclass(frozen=True, slots=True)
class StepPlaces:
    """Where the steps of a session are in its trace, and which of its calls failed."""

    session_id: str
    calls: Mapping[str, str]
    """The step in the trace of each tool call, by its ID."""
    failed_calls: frozenset[str]
    """The IDs of the tool calls whose result is an error."""

    @classmethod
    def of(cls, side: ComparedSession) -> StepPlaces:
        """Return the places of the steps of a session."""
        # The trace names a call by its stored ID, which may be a digest; a comparison by its original ID.
        name = "internal/session_tool_calls"
        calls: dict[str, str] = {}
        failed: set[str] = set()
        for stored, shown in zip(side.rows(name), side.restored(name), strict=True):
            ids = str(stored["tool_use_id"]), str(shown["tool_use_id"])
            calls.update(dict.fromkeys(ids, _call_step(stored)))
            failed.update(ids if stored["is_error"] else ())
        return cls(side.session_id, calls, frozenset(failed))

    def step_id(self, part: Mapping[str, Any] | None) -> str | None:
        """Return the ID of a step in the trace; None if it has none."""
        found = None if part is None else part.get("id")
        if part is None or found is None:
            return None
        return str(found) if part["kind"] == "request" else self.calls.get(str(found))

    def failed_step(self, failure: Row) -> str | None:
        """Return the ID of the failed step in the trace; None if no step failed, or if it is not in the trace."""
        attempt_id = failure["step_attempt_id"]
        if failure["step_kind"] != "tool_call":
            return attempt_id and str(attempt_id)
        found = self.calls.get(str(failure["step_id"]), "")
        return found if found.partition(" ")[0] == attempt_id else None


def _call_step(call: Row) -> str:
    return f"{call['attempt_id']} {call['ordinal']} {call['tool_use_id']}"


def endings(
    sides: Sequence[ComparedSession],
    steps: Sequence[Row],
    summaries: Sequence[Sequence[Row]],
    failures: Sequence[Row | None],
    places: Sequence[StepPlaces],
) -> list[dict[str, Any]]:
    """Return how each session ended: a sentence, and its last failed step in its trace, if known, with its name."""
    turns = [
        max((each[side].get("turn") or 0 for each in steps if _is_main(each.get(side))), default=0)
        for side in "ab"
    ]
    is_same_task = any(step["change"] == "same" for step in steps)
    found = []
    known = zip(sides, summaries, failures, places, strict=True)
    for at, (session, summary, failure, place) in enumerate(known):
        continues = at == 1 and is_same_task and turns[1] > turns[0]
        status = str(summary[0]["status"]) if summary else ""
        agents = session.rows("internal/failed_sub_agents")  # steps are named by stored IDs
        words = ending(
            "AB"[at],
            status,
            turns[at],
            failure,
            continues=continues,
            has_sub_agents=any(
                part is not None and not _is_main(part)
                for part in (step.get("ab"[at]) for step in steps)
            ),
            failed_agents=[
                str(each["agent_type"] or "")
                for each in session.restored("internal/failed_sub_agents")
            ],
        )
        step = failure and place.failed_step(failure)
        outcome = failure["step_outcome"] if failure else None
        if failure is None and agents:
            step = _call_step(agents[-1])
        verb = "denied" if is_denied({"kind": "tool_call", "outcome": outcome}) else "failed"
        link = f"Last {verb} step in {'AB'[at]}"
        found.append({"words": words, "session_id": place.session_id, "step": step, "link": link})
    return found


def _is_main(part: Mapping[str, Any] | None) -> bool:
    return part is not None and part["lane"] == "main"


def model_changes(comparison: Mapping[str, Any], names: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return which models of A were replaced by which models in B, each with the number of the first request for which
    this is so, and with the words about the requests, from `model_words`.

    Args:
        comparison: the parsed output of `agentobs diff --json`.
        names: the display names of the lanes.
    """
    steps = comparison["steps"]
    return [
        {
            **each,
            "number": each["step"],
            "words": model_words(each["requests"], step_place(steps[each["step"] - 1], names)),
        }
        for each in comparison.get("model_changes", ())
    ]
