"""The first differences of two sessions, for the head of their comparison on its page and in the terminal.

Pure functions of the steps of a comparison: those in the parsed output of `agentobs diff --json`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any, NamedTuple

from agentobs.records.display import in_both
from agentobs.store.analysis.failed_steps import has_failed, is_denied

Row = Mapping[str, Any]
MOST_FIRSTS = 3
"""The number of first differences that the head names, so that it fits a small screen. Our choice."""
MISSING_FAILED = "failed step that only one session has"
MISSING_DENIED = "denied step that only one session has"
CHANGE_WORDS = {
    "same": "identical",
    "changed": "changed",
    "removed": "only in A",
    "added": "only in B",
}
"""Each kind of change, in words."""
CONTENT = {
    "system_prompt": "system prompt",
    "tools": "tool definitions",
    "parameters": "tool choice or thinking",
    "beta_headers": "beta headers",
    "messages": "new messages",
    "response": "text of the response",
    "input": "input",
    "result": "result",
    "texts": "content",
}
"""The parts of a step whose content is compared, as in `replay.divergence.session_diff.DIGESTED`, in words."""
_SIZE_OF = {"input_bytes": "input", "result_bytes": "result"}
"""The sizes of contents, and the parts of which they are."""


class FirstChange(NamedTuple):
    """One of the first differences."""

    of: str
    """Of what it is the first one, such as `change of outcome`."""
    number: int
    """The number of the step, from 1."""
    text: str
    """The step, such as `call refund in turn 3`."""
    words: str
    """What differs."""

    @property
    def line(self) -> str:
        """The difference in one line, without a capital letter."""
        return f"first {self.of}: {self.text}: {self.words}"


def first_changes(
    steps: Sequence[Row],
    ordered: Sequence[int],
    names: Mapping[str, str],
    failed_calls: Sequence[Set[str]],
) -> list[FirstChange]:
    """Return the first differences, at most `MOST_FIRSTS`, the most important one first: the first step of both
    sessions that failed in only one of them, the first failed step that only one session has (unless the former
    fails earlier), the first difference, the first change of content, and the first extra attempt.

    Args:
        steps: all steps of the comparison.
        ordered: the numbers of the steps, from 1, in the order in which they ended, from `by_end`.
        names: the display names of the lanes.
        failed_calls: for each session, the IDs of the tool calls whose result is an error.
    """
    extra = [each for each in ordered if _is_extra_attempt(steps[each - 1])]
    usual = [each for each in ordered if not _is_extra_attempt(steps[each - 1])]
    different = [each for each in usual if steps[each - 1]["change"] != "same"]
    failed = [each for each in usual if only_failed_in(steps[each - 1], failed_calls)]
    single = [each for each in failed if steps[each - 1]["change"] in ("added", "removed")]
    common = [each for each in failed if steps[each - 1]["change"] in ("same", "changed")]
    contents = [each for each in different if different_contents(steps[each - 1])]
    found = [("change of outcome", each) for each in common[:1]]
    if single[:1] == failed[:1]:  # otherwise another step fails earlier, which is named already
        found += [(_missing(steps[each - 1]), each) for each in single[:1]]
    known = {*(each for _, each in found), *contents[:1]}
    found += [("difference", each) for each in different[:1] if each not in known]
    found += [("change of content", each) for each in contents[:1]]
    found += [("extra attempt", each) for each in extra[:1]]
    return [
        FirstChange(
            of,
            number,
            step_text(steps[number - 1], names),
            _words(of, steps[number - 1], failed_calls),
        )
        for of, number in found[:MOST_FIRSTS]
    ]


def by_end(steps: Sequence[Row], starts: Sequence[Mapping[tuple[str, str], int]]) -> list[int]:
    """Return the numbers of the steps in the order in which they ended, so that a failure of a sub-agent precedes that
    of the call that started it.

    The steps are aligned lane by lane, so a difference in a sub-agent comes after later ones of the main agent. The
    order within a lane is kept.

    Args:
        steps: all steps of the comparison.
        starts: for each session, when its steps started, by kind and ID; empty for a fixture. [ns since 1970 UTC]
    """
    if len({side_of(step)["lane"] for step in steps}) < 2 or not all(starts):
        return list(range(1, len(steps) + 1))
    begins = [min(known.values()) for known in starts]
    latest: dict[str, int] = {}
    ends = []
    for number, step in enumerate(steps, start=1):
        part, at = side_of(step), "b" in step
        # Times are relative to the first step of the session.
        started = starts[at].get((part["kind"], str(part.get("id"))), begins[at]) - begins[at]
        end = max(started + (part.get("duration_ns") or 0), latest.get(part["lane"], 0))
        latest[part["lane"]] = end
        ends.append((end, number))
    return [number for _, number in sorted(ends)]


def starts_of(rows: Sequence[Row]) -> dict[tuple[str, str], int]:
    """Return when the steps of a session started, in nanoseconds since 1970, by kind and ID.

    Args:
        rows: its rows of `session_steps`, with the original texts.
    """
    return {(row["kind"], row["id"]): row["started_ns"] for row in rows if row["started_ns"]}


def only_failed_in(step: Row, failed_calls: Sequence[Set[str]]) -> str:
    """Return the letter of the session in which a step failed or was denied; empty if this is so in both or in none. A
    failed attempt that was retried counts as no failure, because its last attempt does.
    """
    if any((step.get(side) or {}).get("retried") for side in "ab"):
        return ""
    a, b = (
        _has_failed(step.get(side), failed) for side, failed in zip("ab", failed_calls, strict=True)
    )
    return "" if a == b else "A" if a else "B"


def failed_words(step: Row, failed_calls: Sequence[Set[str]]) -> str:
    """Return what happened to a step that succeeded in neither or only one of the sessions: `failed` or `denied`."""
    letter = only_failed_in(step, failed_calls)
    side = step.get(letter.lower()) if letter else side_of(step)
    return "denied" if is_denied({"outcome": None, **(side or {})}) else "failed"


def side_of(step: Row) -> Row:
    """Return the step of B, or that of A if only A has it."""
    found: Row = step.get("b") or step["a"]
    return found


def step_text(step: Row, names: Mapping[str, str]) -> str:
    """Return a text that names a step, such as `call refund in turn 3 of researcher 1`."""
    side = side_of(step)
    kinds = {"request": "request", "tool_call": f"call {side['name']}"}
    kind = kinds.get(side["kind"], f"permission {side['name']}")
    place = step_place(step, names)
    return f"{kind} in {place}" if turns_of(step) else f"{kind} {place}".rstrip()


def step_place(step: Row, names: Mapping[str, str]) -> str:
    """Return the turn and the agent of a step: `turn 3`, `turn 3 of researcher 1`; without a turn, only the agent of a
    sub-agent.
    """
    lane = side_of(step)["lane"]
    agent = "" if lane == "main" else f"of {names.get(lane, lane)}"
    return " ".join(filter(None, (turns_of(step), agent)))


def model_words(requests: int, place: str) -> tuple[str, str, str]:
    """Return in which requests a model was replaced, in three parts. The second part is the place of the first request:
    ` in 1 request (`, `turn 3` and `)`, or ` in 4 requests, first in `, `turn 1` and nothing.

    Args:
        requests: the number of requests.
        place: the place of the first one, from `step_place`; may be empty.
    """
    if not place:
        return f" in {requests:,} request{'s' * (requests != 1)}", "", ""
    if requests == 1:
        return " in 1 request (", place, ")"
    return f" in {requests:,} requests, first in ", place, ""


def turns_of(step: Row) -> str:
    """Return the turn of a step in words: `turn 5`, or `turn 5 in A, turn 2 in B`; empty if it has none."""
    turns = ((step.get(side) or {}).get("turn") for side in "ab")
    return in_both(*("" if each is None else f"turn {each:,}" for each in turns))


def different_facts(step: Row) -> list[str]:
    """Return the names of the facts of a step that differ."""
    return [
        f"size of the {_SIZE_OF[name]}" if name in _SIZE_OF else name.replace("_", " ")
        for name in different_names(step)
    ]


def different_names(step: Row) -> list[str]:
    """Return the facts of a step that differ, by their names in the comparison, without its contents."""
    found = step.get("differs", ())
    # If the content differs, its size adds nothing.
    return [name for name in found if name not in CONTENT and _SIZE_OF.get(name) not in found]


def different_contents(step: Row) -> list[str]:
    """Return the contents of a step that differ, in words."""
    return [words for name, words in CONTENT.items() if name in step.get("differs", ())]


def failure_of_single(step: Row) -> str:
    """Return how a step that only one session has failed, and whether another attempt succeeded after it; empty if both
    have it, or if it did not fail.
    """
    side = side_of(step)
    if (step.get("a") and step.get("b")) or not has_failed({"outcome": None, **side}):
        return ""
    retried = {"succeeded": ", retried and succeeded", "failed": ", retried without success"}
    return f"{side.get('outcome')}{retried.get(side.get('retried') or '', '')}"


def _has_failed(part: Row | None, failed_calls: Set[str]) -> bool:
    """Return whether a step exists, and failed or was denied."""
    if part is None:
        return False
    is_failed_call = part["kind"] == "tool_call" and part.get("id") in failed_calls
    return is_failed_call or has_failed({"outcome": None, **part})


def _is_extra_attempt(step: Row) -> bool:
    """Return whether only one session has a step, and it is a failed attempt that another attempt followed."""
    return step["change"] in ("added", "removed") and bool(side_of(step).get("retried"))


def _missing(step: Row) -> str:
    is_denial = is_denied({"outcome": None, **side_of(step)})
    return MISSING_DENIED if is_denial else MISSING_FAILED


def _words(of: str, step: Row, failed_calls: Sequence[Set[str]]) -> str:
    """Return what is different in a step."""
    change = CHANGE_WORDS[step["change"]]
    if of == "change of outcome":
        return f"{failed_words(step, failed_calls)} only in {only_failed_in(step, failed_calls)}"
    if of == "change of content":
        return f"different {', '.join(different_contents(step))}"
    if of in (MISSING_FAILED, MISSING_DENIED):
        return f"in {only_failed_in(step, failed_calls)}"
    if step["change"] == "changed":
        return f"different {', '.join([*different_facts(step), *different_contents(step)])}"
    return ", ".join(filter(None, (change, failure_of_single(step))))
