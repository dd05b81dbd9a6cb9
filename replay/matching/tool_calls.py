"""The tool calls of a recording: which of them came, and how each went this time."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from agentobs.provider.messages import assemble, is_stream, server_events, tool_uses
from agentobs.records.canonical_json import canonical
from agentobs.records.differences import Difference, differences, same
from agentobs.records.exchanges import (
    Answer,
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
    "executed": "the agent answers it otherwise than when it was recorded",
    "invalid": "its input does not fit what the tool or the output takes now",
    "unknown": "the agent has no tool of that name now",
    "denied": "permissions are others than when it was recorded",
    "blocked": "a hook blocks it, which none did when it was recorded",
    "skipped": "something was said before it began, which was not when it was recorded",
    "aborted": "the run was stopped before it began, which it was not when it was recorded",
    "deduplicated": "it counts as a call that came before, which it did not when it was recorded",
}
"""The probable cause where a call comes out so now, and did not when it was recorded."""


@dataclass(frozen=True, slots=True)
class Missed:
    """A recorded call that did not come, or came out otherwise."""

    recorded: RecordedTool
    now: ToolAnswer | None
    """What the loop answered it this time; None where it never came."""
    cause: str
    """Why the loop may have answered so; empty where it never came."""

    @property
    def summary(self) -> str:
        """What happened, in one sentence."""
        call, was = self.recorded.question, self.recorded.answer.outcome
        what = f"tool {safe(call.name)} ({safe(call.tool_use_id)}) was {was} when it was recorded"
        if self.now is None:
            return f"{what} and never came"
        if self.now.outcome == was:
            return f"{what}, and is so with another result now"
        return f"{what}, and is {self.now.outcome} now"

    @property
    def why(self) -> str:
        """The probable cause, with the call."""
        call = self.recorded.question
        return f"{safe(call.name)} ({safe(call.tool_use_id)}): {self.cause}"

    def differences(self) -> list[Difference]:
        """Return where the answers differ; none where there is only one."""
        if self.now is None:
            return []
        name = self.recorded.question.name
        return differences({name: _shown(self.recorded.answer)}, {name: _shown(self.now)})


class Calls:
    """The recorded tool calls, some of them made again."""

    def __init__(self, fixture: Fixture, renaming: Renaming) -> None:
        """Take the tool calls of a fixture."""
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
        """Lane and id of the calls that ran live."""
        self.held: dict[str, None] = {}
        """The functions that did not run, though all were to, because they change something outside; in their order."""

    @property
    def total(self) -> int:
        """How many calls were recorded."""
        return len(self._tools)

    @property
    def matched(self) -> int:
        """How many recorded calls came."""
        return len(self._matched)

    def of(self, lane: str, tool_use_id: str) -> RecordedTool | None:
        """Return the recorded call of an id; where a broken answer had made it before, the next one."""
        known = self._recorded.get((lane, tool_use_id), [])
        left = [tool for tool in known if id(tool) not in self._matched]
        return next(iter(left or known[-1:]), None)

    def left_of(self, lane: str, name: str) -> list[RecordedTool]:
        """Return the recorded calls of a function in a lane that have not come, those with ids that count first."""
        left = [
            tool
            for tool in self._tools
            if id(tool) not in self._matched
            and tool.is_function
            and (tool.lane, tool.question.name) == (lane, name)
        ]
        return sorted(left, key=lambda t: not t.question.tool_use_id.startswith(f"{name}@"))

    def is_answered(self, lane: str) -> bool:
        """Return whether a lane lies in a call that was answered from the recording: nothing of it comes again."""
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
        """Return the turn of the agent itself in which a call was made, also by an agent that it started."""
        tool, lane = recorded, recorded.lane
        while is_beside(lane):
            starter = self._starters.get(lane)
            tool, lane = (starter, starter.lane) if starter else (tool, lane.rpartition("/")[0])
        return tool.turn or 0

    def came(self, recorded: RecordedTool | None) -> None:
        """Count a recorded call as matched; a second time changes nothing."""
        if recorded is not None:
            self._matched.add(id(recorded))

    def ran(self, lane: str, tool_use_id: str, answer: ToolAnswer) -> ToolAnswer:
        """Note the answer of a call that the world was asked to run, and return it."""
        self._given.setdefault((lane, tool_use_id), []).append(answer)
        if (lane, tool_use_id) not in self.live:
            self._renaming.hear(lambda: canonical(answer.content))
        return answer

    def heard(self, exchange: ToolExchange) -> None:
        """Note how a call went; one that the loop answers itself, as when it was recorded, has come, too."""
        key = exchange.place.lane, exchange.question.tool_use_id
        if not any(given is exchange.answer for given in self._given.get(key, ())):
            recorded = self.of(*key)
            if recorded is not None and self._same_result(recorded.answer, exchange.answer):
                self.came(recorded)
        self._now[key] = exchange.answer

    def differed(self) -> list[tuple[RecordedTool, ToolAnswer]]:
        """Return the calls that were answered otherwise than recorded, in recorded order, each with its answer now."""
        pairs = ((tool, self._answers_of(_key(tool))) for tool in self._tools)
        return [
            (tool, given[-1])
            for tool, given in pairs
            if given and not any(same(tool.answer.content, each.content) for each in given)
        ]

    def ran_live(self) -> list[tuple[RecordedTool, ToolAnswer]]:
        """Return the calls that ran live and were answered otherwise than recorded, each with its answer now."""
        return [(tool, now) for tool, now in self.differed() if _key(tool) in self.live]

    def _answers_of(self, key: tuple[str, str]) -> list[ToolAnswer]:
        now = self._now.get(key)
        return [*self._given.get(key, ()), *([] if now is None else [now])]

    def decided(self, permission: Permission) -> None:
        """Note how it was decided about a call."""
        self._decided[permission.lane, permission.tool_use_id] = permission

    def missed(self, *, functions_alone: bool = False) -> Missed | None:
        """Return the first recorded call that did not come, though it had to, or came out otherwise.

        With `functions_alone` only those of recorded functions count: nobody tells of others.
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
        """Return the first recorded call of a lane that came out otherwise by now."""
        for tool in self._tools:
            now = self._now.get(_key(tool)) if tool.lane == lane else None
            if now is not None and id(tool) not in self._matched:
                return Missed(tool, now, self._cause(_key(tool), now))
        return None

    def went(self, lane: str, tool_use_id: str, name: str = "", fault: str = "") -> str:
        """Return how a call of a tool went otherwise than recorded, to follow its result back to it.

        `fault` is the one that made calls of that tool fail, if one did.
        """
        key = lane, tool_use_id
        given = self._given.get(key) or self._given_to(lane, name)
        recorded = [tool.answer for tool in self._tools if tool.question.name == name]
        is_recorded = bool(given) and any(same(given[-1].content, r.content) for r in recorded)
        if fault and given and not is_recorded:
            return f"it was made to fail by `{fault}`"
        if key in self.live:
            what = "something else than recorded"
            if is_recorded:
                what = "what was recorded; the agent made another text of it"
            return f"it ran live and returned {what}"
        now, tools = self._now.get(key), self._recorded.get(key, [])
        if now is not None and tools and now.outcome not in [t.answer.outcome for t in tools]:
            return (
                f"it was {tools[0].answer.outcome} when it was recorded, and is {now.outcome} now"
            )
        if given:
            return "it was answered from the recording; the agent made another text of it"
        return (
            "it was answered by the agent's own code, which returned something else than recorded"
        )

    def _given_to(self, lane: str, name: str) -> list[ToolAnswer]:
        """Return what calls of a function were answered whose ids nobody knew, where none of them ran live."""
        counted = [key for key in self._given if key[0] == lane and key[1].startswith(f"{name}@")]
        if any(key in self.live for key in counted):
            return []
        return [answer for key in counted for answer in self._given[key]]

    def _cause(self, key: tuple[str, str], now: ToolAnswer) -> str:
        decided = self._decided.get(key)
        if now.outcome != "denied" or decided is None or decided.behaviour != "deny":
            return CAUSES.get(now.outcome, CAUSES["executed"])
        rule = f" ({safe(decided.rule)})" if decided.rule else ""
        if decided.resolver == "nobody":
            return "consent is needed for it now, and nobody gave it"
        if decided.reason_type == "rule":
            return f"a deny rule of {decided.source or 'unknown source'}{rule} denies it now"
        return f"{decided.reason_type.replace('_', ' ')}{rule} denies it now"

    def _same_result(self, recorded: ToolAnswer, came: ToolAnswer) -> bool:
        """Return whether a call was answered alike; version 1 has not every word of the loop's own answers."""
        if recorded.outcome != came.outcome or not self._fixture.asks_the_world:
            return recorded.outcome == came.outcome
        old, new = canonical(recorded.content), canonical(came.content)
        return old == new or self._renaming.same(old, self._renaming.clean_text(new))


def same_call(recorded: ToolQuestion, came: ToolQuestion, renaming: Renaming) -> bool:
    """Return whether a call is the recorded one, but for secrets, which were not recorded."""
    if recorded.name != came.name:
        return False
    old, new = canonical(recorded.input), canonical(came.input)
    return renaming.same(old, new if old == new else renaming.clean_text(new))


def same_answer(recorded: ToolAnswer, came: ToolAnswer, renaming: Renaming) -> bool:
    """Return whether a call was answered as recorded, but for secrets, which were not recorded."""
    if recorded.outcome != came.outcome:
        return False
    old, new = canonical(recorded.content), canonical(came.content)
    return renaming.same(old, new if old == new else renaming.clean_text(new))


def ask_of(fixture: Fixture, tool: RecordedTool) -> Ask | None:
    """Return the request whose answer made a recorded call: by its id, else by its turn."""
    asks = [ask for ask in fixture.asks if ask.lane == tool.lane]
    made = [ask for ask in asks if tool.question.tool_use_id in _ids(ask)]
    of_turn = [ask for ask in asks if ask.turn is not None and ask.turn == tool.turn]
    return next(reversed(made or of_turn), None)


def _need_not_come(fixture: Fixture, lane: str, tool_use_id: str) -> int:
    """Return how many of the recorded calls of an id need not come again.

    A call that began while its answer was still coming may not begin where that answer breaks off, and
    of a run that was left from outside nobody knows how far its calls came.
    """
    if was_left(fixture, lane):
        return len(fixture.tools)
    asks = [ask for ask in fixture.asks if ask.lane == lane]
    kept = Counter(_keeps_its_calls(fixture, ask) for ask in asks if tool_use_id in _ids(ask))
    recorded = [tool for tool in fixture.tools if _key(tool) == (lane, tool_use_id)]
    return min(kept[False], max(len(recorded) - kept[True], 0))


def _keeps_its_calls(fixture: Fixture, ask: Ask) -> bool:
    """Return whether the calls of an answer get results: it came whole, or the run was stopped in it."""
    if _is_whole(ask.answer):
        return True
    later = [other for other in fixture.asks if other.lane == ask.lane and other.turn == ask.turn]
    told = [(a.lane, a.turn) for a in fixture.world if a.question.kind == "abort"]
    return later[-1:] == [ask] and (ask.lane, ask.turn) in told


def _is_whole(answer: Answer) -> bool:
    if answer.ending != "complete" or "error" in assemble(answer.headers, answer.body):
        return False
    ended = any(event.name == "message_stop" for event in server_events(answer.body))
    return ended or not is_stream(answer.headers)


def _ids(ask: Ask) -> set[str]:
    return {str(c.get("id")) for c in tool_uses(assemble(ask.answer.headers, ask.answer.body))}


def _key(tool: RecordedTool) -> tuple[str, str]:
    return tool.lane, tool.question.tool_use_id


def _shown(answer: ToolAnswer) -> dict[str, object]:
    return {"outcome": answer.outcome, "content": answer.content}
