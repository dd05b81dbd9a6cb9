"""The tool calls of a recording: which of them were made, and how each ended this time."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from agentobs.provider.registry import calls_of, dialect_of
from agentobs.records.canonical_json import canonical
from agentobs.records.differences import Difference, differences, same
from agentobs.records.exchanges import (
    ToolAnswer,
    ToolExchange,
    ToolOutcome,
    ToolQuestion,
    is_beside,
    is_inside_answer,
    lane_under,
)
from agentobs.records.facts import Permission
from replay.comparison.alignment import safe
from replay.comparison.placeholders import Renaming
from replay.fixture.format import Ask, Fixture, RecordedTool
from replay.matching.interaction_ends import was_left

CAUSES: dict[ToolOutcome, str] = {
    "executed": "the agent answers it differently than in the recording",
    "invalid": "its input does not match the current schema of the tool or the output",
    "unknown": "the agent no longer has a tool of that name",
    "denied": "permissions differ from the recording",
    "blocked": "a hook blocks it; none did in the recording",
    "skipped": "a user message arrived before it started; none did in the recording",
    "aborted": "the run was stopped before it started; it was not in the recording",
    "deduplicated": "it is treated as a repeated call; it was not in the recording",
}
"""The probable cause of a call with an outcome now that had none in the recording."""


@dataclass(frozen=True, slots=True)
class Missed:
    """A recorded call that was not made, or had another outcome."""

    recorded: RecordedTool
    now: ToolAnswer | None
    """What the loop answered this time; None if the call was never made."""
    cause: str
    """Why the loop may have answered so; empty if the call was never made."""

    @property
    def summary(self) -> str:
        """What happened, in one sentence."""
        call, was = self.recorded.question, self.recorded.answer.outcome
        what = f"tool {safe(call.name)} ({safe(call.tool_use_id)}) was {was} when it was recorded"
        if self.now is None:
            return f"{what} and was never made"
        if self.now.outcome == was:
            return f"{what}, and is so again with a different result"
        return f"{what}, and is {self.now.outcome} now"

    @property
    def why(self) -> str:
        """The probable cause, with the call."""
        call = self.recorded.question
        return f"{safe(call.name)} ({safe(call.tool_use_id)}): {self.cause}"

    def differences(self) -> list[Difference]:
        """Return where the answers differ; empty if there is only one."""
        if self.now is None:
            return []
        name = self.recorded.question.name
        return differences({name: _shown(self.recorded.answer)}, {name: _shown(self.now)})


class Calls:
    """The recorded tool calls, some of them made again."""

    def __init__(self, fixture: Fixture, renaming: Renaming) -> None:
        """Use the tool calls of a fixture."""
        self._fixture, self._renaming = fixture, renaming
        self._recorded: dict[tuple[str, str], list[RecordedTool]] = {}
        self._tools = [tool for tool in fixture.tools if not is_inside_answer(tool.lane)]
        for tool in self._tools:
            self._recorded.setdefault(_key(tool), []).append(tool)
        self._starters = {lane_under(t.lane, t.question.tool_use_id): t for t in fixture.tools}
        self._matched: set[int] = set()
        self._given: dict[tuple[str, str], list[ToolAnswer]] = {}
        self._now: dict[tuple[str, str], ToolAnswer] = {}
        self._decided: dict[tuple[str, str], Permission] = {}
        self.live: set[tuple[str, str]] = set()
        """Lane and ID of the calls that ran live."""
        self.held: dict[str, None] = {}
        """The functions that did not run although all tools were live, because they are mutating; in order."""

    @property
    def total(self) -> int:
        """How many calls were recorded."""
        return len(self._tools)

    @property
    def matched(self) -> int:
        """How many recorded calls were made."""
        return len(self._matched)

    def of(self, lane: str, tool_use_id: str) -> RecordedTool | None:
        """Return the recorded call with an ID; if an interrupted response had made it before, the next one."""
        known = self._recorded.get((lane, tool_use_id), [])
        left = [tool for tool in known if id(tool) not in self._matched]
        return next(iter(left or known[-1:]), None)

    def left_of(self, lane: str, name: str) -> list[RecordedTool]:
        """Return the recorded calls of a function in a lane that were not made yet, those with counted IDs first."""
        left = [
            tool
            for tool in self._tools
            if id(tool) not in self._matched
            and tool.is_function
            and (tool.lane, tool.question.name) == (lane, name)
        ]
        return sorted(left, key=lambda t: not t.question.tool_use_id.startswith(f"{name}@"))

    def is_answered(self, lane: str) -> bool:
        """Return whether a lane belongs to a call that was answered from the recording: nothing of it recurs."""
        while is_beside(lane):
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
        """Return the turn of the main agent in which a call was made, also by an agent that it started."""
        tool, lane = recorded, recorded.lane
        while is_beside(lane):
            starter = self._starters.get(lane)
            tool, lane = (starter, starter.lane) if starter else (tool, lane.rpartition("/")[0])
        return tool.turn or 0

    def came(self, recorded: RecordedTool | None) -> None:
        """Mark a recorded call as matched; a second time changes nothing."""
        if recorded is not None:
            self._matched.add(id(recorded))

    def ran(self, lane: str, tool_use_id: str, answer: ToolAnswer) -> ToolAnswer:
        """Note the answer to a call that the world was asked to run, and return it."""
        self._given.setdefault((lane, tool_use_id), []).append(answer)
        if (lane, tool_use_id) not in self.live:
            self._renaming.hear(lambda: canonical(answer.content))
        return answer

    def heard(self, exchange: ToolExchange) -> None:
        """Note how a call ended; a call that the loop answers itself, as in the recording, counts as made."""
        key = exchange.place.lane, exchange.question.tool_use_id
        if not any(given is exchange.answer for given in self._given.get(key, ())):
            recorded = self.of(*key)
            if recorded is not None and self._same_result(recorded.answer, exchange.answer):
                self.came(recorded)
        self._now[key] = exchange.answer

    def differed(self) -> list[tuple[RecordedTool, ToolAnswer]]:
        """Return the calls that were answered differently, in recorded order, each with its answer now."""
        pairs = ((tool, self._answers_of(_key(tool))) for tool in self._tools)
        return [
            (tool, given[-1])
            for tool, given in pairs
            if given and not any(same(tool.answer.content, each.content) for each in given)
        ]

    def ran_live(self) -> list[tuple[RecordedTool, ToolAnswer]]:
        """Return the calls that ran live and were answered differently, each with its answer now."""
        return [(tool, now) for tool, now in self.differed() if _key(tool) in self.live]

    def _answers_of(self, key: tuple[str, str]) -> list[ToolAnswer]:
        now = self._now.get(key)
        return [*self._given.get(key, ()), *([] if now is None else [now])]

    def decided(self, permission: Permission) -> None:
        """Note the decision about a call."""
        self._decided[permission.lane, permission.tool_use_id] = permission

    def missed(self, *, functions_alone: bool = False) -> Missed | None:
        """Return the first recorded call that was required and not made, or had another outcome.

        With `functions_alone` only those of recorded functions count, because other clients do not report calls.
        """
        free: dict[tuple[str, str], int] = {}
        for tool in self._tools:
            if id(tool) in self._matched or (functions_alone and not tool.is_function):
                continue
            if self.is_answered(tool.lane):
                continue
            key = _key(tool)
            now = self._now.get(key)
            if now is not None:
                return Missed(tool, now, self._cause(key, now))
            left = free.setdefault(key, _need_not_come(self._fixture, *key))
            if not left:
                return Missed(tool, None, "")
            free[key] = left - 1
        return None

    def otherwise(self, lane: str) -> Missed | None:
        """Return the first recorded call of a lane that had another outcome so far."""
        for tool in self._tools:
            now = self._now.get(_key(tool)) if tool.lane == lane else None
            if now is not None and id(tool) not in self._matched:
                return Missed(tool, now, self._cause(_key(tool), now))
        return None

    def went(self, lane: str, tool_use_id: str, name: str = "", fault: str = "") -> str:
        """Return how a call of a tool differed from the recording, so that its result can be traced back to it.

        `fault` is the injected one that made calls of that tool fail, if any.
        """
        key = lane, tool_use_id
        given = self._given.get(key) or self._given_to(lane, name)
        recorded = [tool.answer for tool in self._tools if tool.question.name == name]
        is_recorded = bool(given) and any(same(given[-1].content, r.content) for r in recorded)
        if fault and given and not is_recorded:
            return f"it failed because of the injected `{fault}`"
        if key in self.live:
            what = "something that differs from the recording"
            if is_recorded:
                what = "the recorded result; the agent made a different text of it"
            return f"it ran live and returned {what}"
        now, tools = self._now.get(key), self._recorded.get(key, [])
        if now is not None and tools and now.outcome not in [t.answer.outcome for t in tools]:
            return (
                f"it was {tools[0].answer.outcome} when it was recorded, and is {now.outcome} now"
            )
        if given:
            return "it was answered from the recording; the agent made a different text of it"
        return "it was answered by the agent's own code, which returned something that differs from the recording"

    def _given_to(self, lane: str, name: str) -> list[ToolAnswer]:
        """Return a description of answered calls of a function whose IDs were unknown, if none of them ran live."""
        counted = [key for key in self._given if key[0] == lane and key[1].startswith(f"{name}@")]
        if any(key in self.live for key in counted):
            return []
        return [answer for key in counted for answer in self._given[key]]

    def _cause(self, key: tuple[str, str], now: ToolAnswer) -> str:
        decided = self._decided.get(key)
        if now.outcome != "denied" or decided is None or decided.behavior != "deny":
            return CAUSES.get(now.outcome, CAUSES["executed"])
        rule = f" ({safe(decided.rule)})" if decided.rule else ""
        if decided.resolver == "unattended":
            return "it now needs consent, which nobody gave"
        if decided.reason_type == "rule":
            return f"a deny rule of {decided.source or 'unknown source'}{rule} denies it now"
        return f"{decided.reason_type.replace('_', ' ')}{rule} denies it now"

    def _same_result(self, recorded: ToolAnswer, came: ToolAnswer) -> bool:
        """Return whether a call was answered in the same way."""
        if recorded.outcome != came.outcome:
            return False
        old, new = canonical(recorded.content), canonical(came.content)
        return old == new or self._renaming.same(old, self._renaming.clean_text(new))


def same_call(recorded: ToolQuestion, came: ToolQuestion, renaming: Renaming) -> bool:
    """Return whether a call is the recorded one, ignoring secrets."""
    if recorded.name != came.name:
        return False
    old, new = canonical(recorded.input), canonical(came.input)
    return renaming.same(old, new if old == new else renaming.clean_text(new))


def same_answer(recorded: ToolAnswer, came: ToolAnswer, renaming: Renaming) -> bool:
    """Return whether a call was answered as recorded, ignoring secrets."""
    if recorded.outcome != came.outcome:
        return False
    old, new = canonical(recorded.content), canonical(came.content)
    return renaming.same(old, new if old == new else renaming.clean_text(new))


def ask_of(fixture: Fixture, tool: RecordedTool) -> Ask | None:
    """Return the request whose response made a recorded call: by its ID, otherwise by its turn."""
    asks = [ask for ask in fixture.asks if ask.lane == tool.lane]
    made = [ask for ask in asks if tool.question.tool_use_id in _ids(ask)]
    of_turn = [ask for ask in asks if ask.turn is not None and ask.turn == tool.turn]
    return next(reversed(made or of_turn), None)


def _need_not_come(fixture: Fixture, lane: str, tool_use_id: str) -> int:
    """Return how many of the recorded calls with an ID need not recur.

    A call that started while its response was still streaming may not start if that response breaks off, and
    in an abandoned run it is unknown how far its calls came.
    """
    if was_left(fixture, lane):
        return len(fixture.tools)
    asks = [ask for ask in fixture.asks if ask.lane == lane]
    kept = Counter(_keeps_its_calls(fixture, ask) for ask in asks if tool_use_id in _ids(ask))
    recorded = [tool for tool in fixture.tools if _key(tool) == (lane, tool_use_id)]
    return min(kept[False], max(len(recorded) - kept[True], 0))


def _keeps_its_calls(fixture: Fixture, ask: Ask) -> bool:
    """Return whether the calls of a response get results: it was complete, or the run was stopped during it."""
    if dialect_of(ask.path).facts(ask.answer).outcome == "ok":
        return True
    later = [other for other in fixture.asks if other.lane == ask.lane and other.turn == ask.turn]
    told = [(a.lane, a.turn) for a in fixture.world if a.question.kind == "abort"]
    return later[-1:] == [ask] and (ask.lane, ask.turn) in told


def _ids(ask: Ask) -> set[str]:
    return {str(call.id) for call in calls_of(ask.path, ask.answer)}


def _key(tool: RecordedTool) -> tuple[str, str]:
    return tool.lane, tool.question.tool_use_id


def _shown(answer: ToolAnswer) -> dict[str, object]:
    return {"outcome": answer.outcome, "content": answer.content}
