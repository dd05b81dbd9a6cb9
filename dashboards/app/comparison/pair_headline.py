"""The head of a comparison: how each session ended, the first change of an outcome, and the first change of content."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentobs.store.analysis.failed_steps import has_failed
from dashboards.app.comparison.compared_session import ComparedSession
from dashboards.app.store_view import Row
from dashboards.panels.pair_summary import ending, row

MOST_FIRSTS = 3
"""The number of first differences that the head names, so that it fits a small screen. Our choice."""
MISSING_STEP = "failed step that the other session does not have"


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

    def has_failed(self, part: Mapping[str, Any] | None) -> bool:
        """Return whether a step exists and failed."""
        if part is None:
            return False
        is_failed_call = part["kind"] == "tool_call" and part.get("id") in self.failed_calls
        return is_failed_call or has_failed({**part, "outcome": part.get("outcome")})


def _call_step(call: Row) -> str:
    return f"{call['attempt_id']} {call['ordinal']} {call['tool_use_id']}"


def endings(
    sides: Sequence[ComparedSession],
    steps: Sequence[Row],
    summaries: Sequence[Sequence[Row]],
    failures: Sequence[Row | None],
    places: Sequence[StepPlaces],
) -> list[dict[str, Any]]:
    """Return how each session ended: a sentence, and the failed step in its trace, if known."""
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
            failed_agents=[
                str(each["agent_type"] or "")
                for each in session.restored("internal/failed_sub_agents")
            ],
        )
        step = failure and place.failed_step(failure)
        if failure is None and agents:
            step = _call_step(agents[0])
        found.append({"words": words, "session_id": place.session_id, "step": step})
    return found


def _is_main(part: Mapping[str, Any] | None) -> bool:
    return part is not None and part["lane"] == "main"


def first_changes(
    steps: Sequence[Row],
    ordered: Sequence[int],
    names: Mapping[str, str],
    places: Sequence[StepPlaces],
) -> list[dict[str, Any]]:
    """Return the first differences, at most `MOST_FIRSTS`, the most important one first: the first step of both
    sessions that failed in only one of them, the first failed step that the other session does not have (unless the
    former fails earlier), the first difference, the first change of content, and the first extra attempt. The page
    starts with the first of them.

    Args:
        steps: all steps of the comparison.
        ordered: the numbers of the steps, from 1, in the order in which they ended.
        names: the display names of the lanes.
        places: where the steps of both sessions are.
    """
    extra = [each for each in ordered if _is_extra_attempt(steps[each - 1])]
    usual = [each for each in ordered if not _is_extra_attempt(steps[each - 1])]
    different = [each for each in usual if steps[each - 1]["change"] != "same"]
    failed = [each for each in usual if only_failed_in(steps[each - 1], places)]
    single = [each for each in failed if steps[each - 1]["change"] in ("added", "removed")]
    common = [each for each in failed if steps[each - 1]["change"] in ("same", "changed")]
    contents = [each for each in different if row(steps[each - 1])["contents"]]
    found = [("change of outcome", each) for each in common[:1]]
    if single[:1] == failed[:1]:  # otherwise another step fails earlier, which is named already
        found += [(MISSING_STEP, each) for each in single[:1]]
    known = {*(each for _, each in found), *contents[:1]}
    found += [("difference", each) for each in different[:1] if each not in known]
    found += [("change of content", each) for each in contents[:1]]
    found += [("extra attempt", each) for each in extra[:1]]
    return [
        {"of": of, **described(number, steps[number - 1], names), "words": words}
        for of, number in found[:MOST_FIRSTS]
        for words in [_words(of, steps[number - 1], only_failed_in(steps[number - 1], places))]
    ]


def _is_extra_attempt(step: Row) -> bool:
    """Return whether only one session has a step, and it is a failed attempt that another attempt followed."""
    return step["change"] in ("added", "removed") and bool(side_of(step).get("retried"))


def _words(of: str, step: Row, failed_in: str) -> str:
    """Return what is different in a step."""
    known = row(step)
    if of == "change of outcome":
        return f"{_verb(step)} only in {failed_in}"
    if of == "change of content":
        return f"different {', '.join(known['contents'])}"
    if of == MISSING_STEP:
        return f"{known['words']}, and {_verb(step)}"
    if step["change"] == "changed":
        names = [name for name, _, _ in known["differs"]]
        return f"different {', '.join([*names, *known['contents']])}"
    return ", ".join(filter(None, (known["words"], known["failure"])))


def _verb(step: Row) -> str:
    """Return what happened to a step that did not succeed."""
    return "denied" if side_of(step)["kind"] == "decision" else "failed"


def side_of(step: Row) -> Row:
    """Return the step of B, or that of A if only A has it."""
    found: Row = step.get("b") or step["a"]
    return found


def model_changes(comparison: Mapping[str, Any], names: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return which models of A were replaced by which models in B, each with the first request for which this is so.

    Args:
        comparison: the parsed output of `agentobs diff --json`.
        names: the display names of the lanes.
    """
    steps = comparison["steps"]
    return [
        {**each, **described(each["step"], steps[each["step"] - 1], names)}
        for each in comparison.get("model_changes", ())
    ]


def only_failed_in(step: Row, places: Sequence[StepPlaces]) -> str:
    """Return the letter of the session in which a step failed; empty if it failed in both or in none. A failed attempt
    that was retried counts as no failure, because its last attempt does.
    """
    if any((step.get(side) or {}).get("retried") for side in "ab"):
        return ""
    a, b = (place.has_failed(step.get(side)) for side, place in zip("ab", places, strict=True))
    return "" if a == b else "A" if a else "B"


def described(number: int, step: Row, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the number of a step, and a text that names it."""
    side, known = side_of(step), row(step)
    kinds = {"request": "request", "tool_call": f"call {side['name']}"}
    kind = kinds.get(side["kind"], f"permission {side['name']}")
    turn = f" in {known['at']}" if known["at"] else ""
    lane = "" if side["lane"] == "main" else f" of {names.get(side['lane'], side['lane'])}"
    return {"number": number, "text": f"{kind}{turn}{lane}"}
