"""The tool calls of a recording: which of them were made again, and their results in the replay."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from agentobs.provider.registry import calls_of, dialect_of
from agentobs.records.canonical_json import canonical
from agentobs.records.differences import Difference, differences, json_equal
from agentobs.records.exchanges import (
    ToolAnswer,
    ToolExchange,
    ToolOutcome,
    ToolQuestion,
    child_lane,
    has_parent_lane,
    is_inside_answer,
)
from agentobs.records.facts import Permission
from replay.comparison.alignment import safe
from replay.comparison.placeholders import Renaming
from replay.fixture.format import Fixture, RecordedRequest, RecordedTool
from replay.matching.interaction_ends import was_abandoned

CAUSES: dict[ToolOutcome, str] = {
    "executed": "the agent returns a different result than in the recording",
    "invalid": "its input does not match the current schema of the tool or the output",
    "unknown": "the agent no longer has a tool with that name",
    "denied": "permissions differ from the recording",
    "answered": "a hook answers the call; in the recording, no hook did",
    "unavailable": "the tool is withdrawn or the breaker of its service is open; in the recording, it was not",
    "blocked": "a hook blocks the call; in the recording, no hook did",
    "skipped": "a user message arrived before the call started; in the recording, none did",
    "aborted": "the run was stopped before the call started; in the recording, it was not stopped",
    "deduplicated": "the call is treated as a duplicate; in the recording, it was not",
}
"""The probable cause if a call has this outcome in the replay and a different outcome in the recording."""


@dataclass(frozen=True, slots=True)
class ChangedCall:
    """A recorded call that was not made in the replay, or had a different outcome or result."""

    recorded: RecordedTool
    now: ToolAnswer | None
    """The answer in the replay; None if the call was not made."""
    cause: str
    """The probable cause of this answer; empty if the call was not made."""

    @property
    def summary(self) -> str:
        """What happened, in one sentence."""
        call, recorded_outcome = self.recorded.question, self.recorded.answer.outcome
        tool = f"tool {safe(call.name)} ({safe(call.tool_use_id)})"
        if self.now is None:
            return f"{tool} was called in the recording, but not in this replay"
        if self.now.outcome == recorded_outcome:
            return f"{tool} returned a different result than in the recording"
        return f"{tool} was {recorded_outcome} in the recording, and is {self.now.outcome} now"

    @property
    def why(self) -> str:
        """The call and the probable cause, in one sentence."""
        call = self.recorded.question
        return f"{safe(call.name)} ({safe(call.tool_use_id)}): {self.cause}"

    def differences(self) -> list[Difference]:
        """Return the differences of the answers; empty if the call was not made in the replay."""
        if self.now is None:
            return []
        name = self.recorded.question.name
        return differences({name: _shown(self.recorded.answer)}, {name: _shown(self.now)})


class Calls:
    """The recorded tool calls, and which of them were made in the replay."""

    def __init__(self, fixture: Fixture, renaming: Renaming) -> None:
        """Use the tool calls of a fixture."""
        self._fixture, self._renaming = fixture, renaming
        self._recorded: dict[tuple[str, str], list[RecordedTool]] = {}
        self._tools = [tool for tool in fixture.tools if not is_inside_answer(tool.lane)]
        for tool in self._tools:
            self._recorded.setdefault(_key(tool), []).append(tool)
        self._starters = {child_lane(t.lane, t.question.tool_use_id): t for t in fixture.tools}
        self._matched: set[int] = set()
        self._answers: dict[tuple[str, str], list[ToolAnswer]] = {}
        self._ends: dict[tuple[str, str], ToolAnswer] = {}
        self._permissions: dict[tuple[str, str], Permission] = {}
        self.live: set[tuple[str, str]] = set()
        """The lane and the ID of each call that ran live."""
        self.skipped_functions: dict[str, None] = {}
        """The names of the functions that did not run although all tools are live, because they are mutating."""

    @property
    def total(self) -> int:
        """The number of recorded calls."""
        return len(self._tools)

    @property
    def matched(self) -> int:
        """The number of recorded calls that were made in the replay."""
        return len(self._matched)

    def find(self, lane: str, tool_use_id: str) -> RecordedTool | None:
        """Return the recorded call with an ID; None if there is none.

        If several calls have the ID, because a response was interrupted and repeated, return the first unmatched call.
        """
        known = self._recorded.get((lane, tool_use_id), [])
        unmatched = [tool for tool in known if id(tool) not in self._matched]
        return next(iter(unmatched or known[-1:]), None)

    def unused_functions(self, lane: str, name: str) -> list[RecordedTool]:
        """Return the recorded calls of a function in a lane that were not made yet, counted IDs (`name@1`) first."""
        unused = [
            tool
            for tool in self._tools
            if id(tool) not in self._matched
            and tool.is_function
            and (tool.lane, tool.question.name) == (lane, name)
        ]
        return sorted(unused, key=lambda t: not t.question.tool_use_id.startswith(f"{name}@"))

    def is_answered(self, lane: str) -> bool:
        """Return whether a lane belongs to a call that was answered from the recording, so that no part of the lane
        recurs.
        """
        while has_parent_lane(lane):
            starter = self._starters.get(lane)
            if (
                starter is not None
                and id(starter) in self._matched
                and _key(starter) not in self.live
            ):
                return starter.is_function
            lane = lane.rpartition("/")[0]
        return False

    def turn_of(self, recorded: RecordedTool) -> int:
        """Return the turn of the main agent in which a call was made by the main agent or by one of its sub-agents."""
        tool, lane = recorded, recorded.lane
        while has_parent_lane(lane):
            starter = self._starters.get(lane)
            tool, lane = (starter, starter.lane) if starter else (tool, lane.rpartition("/")[0])
        return tool.turn or 0

    def mark_matched(self, recorded: RecordedTool | None) -> None:
        """Mark a recorded call as made in the replay; do nothing if there is none."""
        if recorded is not None:
            self._matched.add(id(recorded))

    def note_answer(self, lane: str, tool_use_id: str, answer: ToolAnswer) -> ToolAnswer:
        """Remember the answer that the world returns for a call; return the answer."""
        self._answers.setdefault((lane, tool_use_id), []).append(answer)
        if (lane, tool_use_id) not in self.live:
            self._renaming.note_answer(lambda: canonical(answer.content))
        return answer

    def note_end(self, exchange: ToolExchange) -> None:
        """Remember the end of a call. The call counts as made if the loop itself returned the recorded result."""
        key = exchange.place.lane, exchange.question.tool_use_id
        if not any(answer is exchange.answer for answer in self._answers.get(key, ())):
            recorded = self.find(*key)
            if recorded is not None and self._same_result(recorded.answer, exchange.answer):
                self.mark_matched(recorded)
        self._ends[key] = exchange.answer

    def changed_results(self) -> list[tuple[RecordedTool, ToolAnswer]]:
        """Return the calls that were answered differently, in recorded order, each with its answer in the replay."""
        pairs = ((tool, self._answers_of(_key(tool))) for tool in self._tools)
        return [
            (tool, answers[-1])
            for tool, answers in pairs
            if answers and not any(json_equal(tool.answer.content, a.content) for a in answers)
        ]

    def ran_live(self) -> list[tuple[RecordedTool, ToolAnswer]]:
        """Return the calls that ran live and were answered differently, each with its answer in the replay."""
        return [(tool, now) for tool, now in self.changed_results() if _key(tool) in self.live]

    def _answers_of(self, key: tuple[str, str]) -> list[ToolAnswer]:
        end = self._ends.get(key)
        return [*self._answers.get(key, ()), *([] if end is None else [end])]

    def note_permission(self, permission: Permission) -> None:
        """Remember the permission decision about a call."""
        self._permissions[permission.lane, permission.tool_use_id] = permission

    def first_changed(self, *, functions_only: bool = False) -> ChangedCall | None:
        """Return the first recorded call that had a different outcome, or was required but not made; None if all match.

        With `functions_only`, only calls of recorded functions count, because other clients do not report their calls.
        """
        optional: dict[tuple[str, str], int] = {}
        for tool in self._tools:
            if id(tool) in self._matched or (functions_only and not tool.is_function):
                continue
            if self.is_answered(tool.lane):
                continue
            key = _key(tool)
            now = self._ends.get(key)
            if now is not None:
                return ChangedCall(tool, now, self._cause(key, now))
            remaining = optional.setdefault(key, _optional_count(self._fixture, *key))
            if not remaining:
                return ChangedCall(tool, None, "")
            optional[key] = remaining - 1
        return None

    def changed_outcome(self, lane: str) -> ChangedCall | None:
        """Return the first recorded call of a lane that had a different outcome so far; None if there is none."""
        for tool in self._tools:
            now = self._ends.get(_key(tool)) if tool.lane == lane else None
            if now is not None and id(tool) not in self._matched:
                return ChangedCall(tool, now, self._cause(_key(tool), now))
        return None

    def describe_result(self, lane: str, tool_use_id: str, name: str = "", fault: str = "") -> str:
        """Describe where the result of a tool call came from and how it differs from the recording.

        `fault` is the injected fault that made calls of the tool fail; empty if there is none.
        """
        key = lane, tool_use_id
        answers = self._answers.get(key) or self._function_answers(lane, name)
        recorded = [tool.answer for tool in self._tools if tool.question.name == name]
        is_recorded = bool(answers) and any(
            json_equal(answers[-1].content, r.content) for r in recorded
        )
        if fault and answers and not is_recorded:
            return f"it failed because of the injected `{fault}`"
        if key in self.live:
            what = "a result that differs from the recording"
            if is_recorded:
                what = "the recorded result, but the agent rendered it differently"
            return f"it ran live and returned {what}"
        now, tools = self._ends.get(key), self._recorded.get(key, [])
        if now is not None and tools and now.outcome not in [t.answer.outcome for t in tools]:
            return f"it was {tools[0].answer.outcome} in the recording, and is {now.outcome} now"
        if answers:
            return "its result came from the recording, but the agent rendered it differently"
        return "the agent's own code answered it, with a result that differs from the recording"

    def _function_answers(self, lane: str, name: str) -> list[ToolAnswer]:
        """Return the answers to the calls of a function that have counted IDs; no answers if any of them ran live."""
        counted = [key for key in self._answers if key[0] == lane and key[1].startswith(f"{name}@")]
        if any(key in self.live for key in counted):
            return []
        return [answer for key in counted for answer in self._answers[key]]

    def _cause(self, key: tuple[str, str], now: ToolAnswer) -> str:
        decided = self._permissions.get(key)
        if now.outcome != "denied" or decided is None or decided.behavior != "deny":
            return CAUSES.get(now.outcome, CAUSES["executed"])
        rule = f" ({safe(decided.rule)})" if decided.rule else ""
        if decided.resolver == "unattended":
            return "it now requires an approval, which was not given"
        if decided.reason_type == "rule":
            return f"a deny rule of {decided.source or 'an unknown source'}{rule} denies it now"
        return f"{decided.reason_type.replace('_', ' ')}{rule} denies it now"

    def _same_result(self, recorded: ToolAnswer, live: ToolAnswer) -> bool:
        """Return whether a call has the recorded outcome and result."""
        if recorded.outcome != live.outcome:
            return False
        old, new = canonical(recorded.content), canonical(live.content)
        return old == new or self._renaming.matches(old, self._renaming.clean_text(new))


def same_call(recorded: ToolQuestion, live: ToolQuestion, renaming: Renaming) -> bool:
    """Return whether a live call matches the recorded call, up to a renaming of secrets."""
    if recorded.name != live.name:
        return False
    old, new = canonical(recorded.input), canonical(live.input)
    return renaming.matches(old, new if old == new else renaming.clean_text(new))


def same_answer(recorded: ToolAnswer, live: ToolAnswer, renaming: Renaming) -> bool:
    """Return whether a live answer matches the recorded answer, up to a renaming of secrets."""
    if recorded.outcome != live.outcome:
        return False
    old, new = canonical(recorded.content), canonical(live.content)
    return renaming.matches(old, new if old == new else renaming.clean_text(new))


def issuing_request(fixture: Fixture, tool: RecordedTool) -> RecordedRequest | None:
    """Return the request whose response contains a recorded call; if there is none, a request of the same turn."""
    requests = [each for each in fixture.requests if each.lane == tool.lane]
    with_call = [each for each in requests if tool.question.tool_use_id in _call_ids(each)]
    of_turn = [each for each in requests if each.turn is not None and each.turn == tool.turn]
    return next(reversed(with_call or of_turn), None)


def _optional_count(fixture: Fixture, lane: str, tool_use_id: str) -> int:
    """Return how many of the recorded calls with an ID are not required to recur.

    If a response breaks off, a call that started during the response may not start in the replay. In an abandoned run,
    no call is required, because it is unknown which calls were made before the run was abandoned.
    """
    if was_abandoned(fixture, lane):
        return len(fixture.tools)
    requests = [each for each in fixture.requests if each.lane == lane]
    kept = Counter(
        _keeps_calls(fixture, each) for each in requests if tool_use_id in _call_ids(each)
    )
    recorded = [tool for tool in fixture.tools if _key(tool) == (lane, tool_use_id)]
    return min(kept[False], max(len(recorded) - kept[True], 0))


def _keeps_calls(fixture: Fixture, request: RecordedRequest) -> bool:
    """Return whether the calls of a response get results: it was complete, or the run was stopped during it."""
    if dialect_of(request.path).facts(request.answer).outcome == "ok":
        return True
    place = request.lane, request.turn
    of_turn = [each for each in fixture.requests if (each.lane, each.turn) == place]
    aborts = [(a.lane, a.turn) for a in fixture.world if a.question.kind == "abort"]
    return of_turn[-1:] == [request] and place in aborts


def _call_ids(request: RecordedRequest) -> set[str]:
    return {str(call.id) for call in calls_of(request.path, request.answer)}


def _key(tool: RecordedTool) -> tuple[str, str]:
    return tool.lane, tool.question.tool_use_id


def _shown(answer: ToolAnswer) -> dict[str, object]:
    return {"outcome": answer.outcome, "content": answer.content}
