"""The tool calls of a recording: which of them came, and how each went this time."""

from __future__ import annotations

from agentobs.records.canonical import canonical
from agentobs.records.exchanges import ToolAnswer, ToolExchange, ToolQuestion
from replay.fixture import RecordedTool
from replay.world import clean


class Calls:
    """The recorded tool calls, some of them made again."""

    def __init__(self, recorded: list[RecordedTool]) -> None:
        """Take the tool calls of a fixture."""
        self.total = len(recorded)
        self._recorded: dict[tuple[str, str], list[RecordedTool]] = {}
        for tool in recorded:
            self._recorded.setdefault((tool.lane, tool.question.tool_use_id), []).append(tool)
        self._matched: set[int] = set()
        self._outcomes: dict[str, str] = {}
        self.live: set[str] = set()
        """The ids of the calls that ran live."""

    @property
    def matched(self) -> int:
        """How many recorded calls came."""
        return len(self._matched)

    def of(self, lane: str, tool_use_id: str) -> RecordedTool | None:
        """Return the recorded call of an id; where a broken answer had made it before, the next one."""
        known = self._recorded.get((lane, tool_use_id), [])
        left = [tool for tool in known if id(tool) not in self._matched]
        return next(iter(left or known[-1:]), None)

    def came(self, recorded: RecordedTool | None) -> None:
        """Count a recorded call as matched; a second time changes nothing."""
        if recorded is not None:
            self._matched.add(id(recorded))

    def heard(self, exchange: ToolExchange) -> None:
        """Note how a call went; one that the loop answers itself, as when it was recorded, has come, too."""
        recorded = self.of(exchange.place.lane, exchange.question.tool_use_id)
        if recorded is not None and _same_result(recorded.answer, exchange.answer):
            self.came(recorded)
        self._outcomes[exchange.question.tool_use_id] = exchange.answer.outcome

    def went(self, tool_use_id: str) -> str:
        """Return how a call went otherwise than recorded, to follow its result back to it."""
        if tool_use_id in self.live:
            return "it ran live and returned something else than recorded"
        now = self._outcomes.get(tool_use_id)
        for (_, known), tools in self._recorded.items():
            if known == tool_use_id and now not in (None, *(t.answer.outcome for t in tools)):
                return f"it was {tools[0].answer.outcome} when it was recorded, and is {now} now"
        text = (
            "it was answered by the agent's own code, which returned something else than recorded"
        )
        return text


def same_call(recorded: ToolQuestion, came: ToolQuestion) -> bool:
    """Return whether a call is the recorded one, but for secrets, which were not recorded."""
    if recorded.name != came.name:
        return False
    old, new = canonical(recorded.input), canonical(came.input)
    return old == new or old == clean(new)


def _same_result(recorded: ToolAnswer, came: ToolAnswer) -> bool:
    old, new = canonical(recorded.content), canonical(came.content)
    return recorded.outcome == came.outcome and (old == new or old == clean(new))
