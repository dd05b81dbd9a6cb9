"""The world of a replay: what the loop asked beside model and tools is answered from the fixture.

An answer belongs to a lane, a kind and a key. What a call needs (consent, its check, its paths) is known
by the id of the call; anything else recurs, too, and is given only after as many requests of its lane as
it came after when it was recorded. That nothing was said is not recorded: it is what is not there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from agentobs import tracing
from agentobs.records.canonical_json import canonical
from agentobs.records.exchanges import (
    ECHOED,
    AskKind,
    WorldExchange,
    WorldQuestion,
    is_inside_answer,
)
from agentobs.world import Abort, nobody
from replay.comparison.placeholders import Renaming, bare
from replay.fixture.format import RecordedAnswer

OF_A_CALL: tuple[AskKind, ...] = ("consent", "check", "path")
"""Questions about one tool call, whose id is their key."""

WHY: dict[AskKind, str] = {
    "consent": "the rules of permission, the mode or the tool's own settings are others than when it was recorded",
    "check": "the tool has got a check of its own, or another one, since it was recorded",
    "path": "the tool takes paths, or others, that it did not take when it was recorded",
    "tool_set": "the tools that may be missing are others than when it was recorded",
    "spent_today": "the budget of the day is another than when it was recorded",
    "steering": "the agent looks for what was said elsewhere than when it was recorded",
    "follow_up": "the agent would have stopped elsewhere than when it was recorded",
    "hook": "the hooks, or what they are asked about, are others than when it was recorded",
    "refresh": "the credentials were refused, or can be made anew, otherwise than when it was recorded",
    "conversation": "another session is resumed than when it was recorded",
    "section": "the sections of the system prompt, or which of them are volatile, are others than when it was recorded",
    "memory": "the conversation is made shorter elsewhere than when it was recorded",
    "keep": "another result is too long than when it was recorded",
    "limit": "the budget, or what was spent when this was recorded, is another now",
    "background": "background agents end elsewhere than when it was recorded",
    "elapsed": "the agent looks at the clock elsewhere than when it was recorded",
    "compacted": "the conversation is made shorter by hand elsewhere than when it was recorded",
    "abort": "the run was stopped there when it was recorded, and did not get there now",
}
"""The probable cause where such a question is not the recorded one."""

PERMITTED = {"behaviour": "allow", "by": "person", "scope": "once", "reason": ""}
"""The consent to a call that ran before there was any."""

Asked = Callable[[str], int]
"""Tells how many requests of a lane were asked so far."""


class Answers:
    """The recorded answers of the world, some of them given."""

    def __init__(self, recorded: list[RecordedAnswer], asked: Asked, renaming: Renaming) -> None:
        """Take the answers of a fixture."""
        self._recorded = [a for a in recorded if not is_inside_answer(a.lane)]
        self._asked, self._renaming = asked, renaming
        self._given: set[int] = set()
        self._by_key: dict[tuple[str, AskKind, str], list[RecordedAnswer]] = {}
        for answer in self._recorded:
            key = answer.lane, answer.question.kind, bare(answer.question.key)
            self._by_key.setdefault(key, []).append(answer)
        self._stopped = {a.lane for a in self._recorded if a.question.kind == "abort"}

    @property
    def total(self) -> int:
        """How many answers were recorded."""
        return len(self._recorded)

    @property
    def left(self) -> list[RecordedAnswer]:
        """The answers that were not asked for, in recorded order."""
        return [answer for answer in self._recorded if id(answer) not in self._given]

    def of(self, lane: str, question: WorldQuestion) -> RecordedAnswer | None:
        """Return the recorded answer to a question by its lane, kind and key, without giving it."""
        # Most questions are looks for a word or an abort that never came: they must cost nothing.
        if not self._by_key:
            return None
        known = self._by_key.get((lane, question.kind, question.key))
        if known is None:
            cleaned = bare(self._renaming.clean_text(question.key))
            known = self._by_key.get((lane, question.kind, cleaned), [])
        for answer in known:
            if id(answer) in self._given:
                continue
            if question.kind in OF_A_CALL or answer.after <= self._asked(lane):
                return answer
        return None

    def give(self, answer: RecordedAnswer) -> Any:
        """Give an answer, which is then spent."""
        self._given.add(id(answer))
        self._renaming.hear(lambda: canonical(answer.answer))
        return answer.answer

    def told(self, exchange: WorldExchange) -> None:
        """Note that the loop told where it was stopped."""
        if exchange.question.kind != "abort":
            return
        lane, point = exchange.place.lane, exchange.question.key
        for each in _points(point):
            recorded = self.of(lane, WorldQuestion("abort", each))
            if recorded is not None:
                self.give(recorded)
                return

    def stops_in(self, lane: str) -> bool:
        """Return whether a run of a lane was stopped when it was recorded."""
        return lane in self._stopped

    def stops(self, lane: str, point: str, count: int) -> bool:
        """Return whether the run was stopped there when it was recorded; asked at each event of a stream."""
        return any(self._stops_at(lane, each, count) for each in _points(point))

    def _stops_at(self, lane: str, point: str, count: int) -> bool:
        if (lane, "abort", point) not in self._by_key:
            return False
        recorded = self.of(lane, WorldQuestion("abort", point))
        if recorded is None or not isinstance(recorded.answer, dict):
            return False
        stopped = recorded.answer.get("count")
        return isinstance(stopped, int) and count >= stopped


def _points(point: str) -> tuple[str, ...]:
    """Return where a run may have been told to stop, that stops here.

    A run that was stopped while its request was being made could not know whether it had gone out. Where
    it had not, the recorded stop comes after fewer requests, and is found before this one is asked.
    """
    before, _, after = point.partition(":unsent:")
    return (point, f"{before}:streaming:{after}") if after else (point,)


class RecordedAbort(Abort):
    """Stops a run where it was stopped when it was recorded, and nowhere else."""

    def __init__(self, answers: Answers) -> None:
        """Look into the recorded answers."""
        super().__init__()
        self._answers = answers

    def stop(self) -> None:
        """Change nothing: the recording says where the run was stopped."""

    def under(self) -> Abort:
        """Return itself: where a run that another one started was stopped is recorded in its own lane."""
        return self

    def reached(self, point: str, count: int) -> bool:
        """Return whether the run was stopped here; a later run of the same lane goes on."""
        return self._answers.stops(lane_here(), point, count)

    async def wait(self) -> None:
        """Wait for ever: answers of a replay come at once, so that nothing needs to be interrupted."""
        await asyncio.get_running_loop().create_future()


LEFT_SECONDS = 30.0
"""How long a replay waits for an agent that was left when it was recorded, and is waited for now. Our choice."""


LOOK_SECONDS = 0.02
"""How often it looks meanwhile whether the replay has diverged elsewhere. Our choice."""


async def never(error: Callable[[], BaseException], look: Callable[[], None] | None = None) -> Any:
    """Wait until the caller is cancelled, for nobody knows how it would go on; where none cancels it, raise.

    `look` raises where there is nothing more to wait for.
    """
    for _ in range(int(LEFT_SECONDS / LOOK_SECONDS)):
        if look is not None:
            look()
        await asyncio.sleep(LOOK_SECONDS)
    raise error()


def silence(kind: AskKind) -> Any:
    """Return what it means that nothing was recorded for one of the `SILENT` questions."""
    return [] if kind in ("steering", "follow_up", "background") else None


async def unasked(question: WorldQuestion) -> Any:
    """Answer as if nobody had been asked: for recordings of when calls just ran."""
    match question.kind:
        case "consent":
            return dict(PERMITTED)
        case "path":
            return [{"path": path, "inside": True} for path in question.asked]
        case _:
            return await nobody(question)


def lane_here() -> str:
    """Return the lane of the caller."""
    here = tracing.place()
    return here.lane if here else "main"


def same_question(recorded: WorldQuestion, came: WorldQuestion, renaming: Renaming) -> bool:
    """Return whether the same was asked, but for secrets, which were not recorded."""
    old, new = canonical(meant(recorded)), canonical(meant(came))
    return renaming.same(old, new if old == new else renaming.clean_text(new))


def meant(question: WorldQuestion) -> Any:
    """Return what is compared of a question: of consent neither our words nor the tool's name, which may change.

    What the loop saw when it asked is no question: it depends on who came first.
    """
    if question.kind in ECHOED:
        return None
    match question.kind, question.asked:
        case "consent", {"about": {"tool": _, **about}}:
            return about
        case _:
            return question.asked
