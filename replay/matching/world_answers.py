"""The world of a replay: what the loop asks besides model and tools is answered from the fixture.

An answer belongs to a lane, a kind and a key. Questions about a call (its approval, validation, paths) are identified
by the call ID. Other questions recur as well, and are answered only after as many requests of their lane as
in the recording. Empty answers to polls are not recorded; a missing answer means empty.
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
from agentobs.world import Abort
from replay.comparison.placeholders import Renaming, bare
from replay.fixture.format import RecordedAnswer

OF_A_CALL: tuple[AskKind, ...] = ("consent", "check", "path")
"""Questions about one tool call, whose ID is their key."""

WHY: dict[AskKind, str] = {
    "consent": "the permission rules, the mode or the tool's own settings differ from the recording",
    "check": "the tool's own check was added or changed since the recording",
    "path": "the tool's path parameters differ from the recording",
    "tool_set": "the tools that may be missing differ from the recording",
    "spent_today": "the daily budget differs from the recording",
    "steering": "the agent checks for user messages at other points than in the recording",
    "follow_up": "the agent stops at another point than in the recording",
    "hook": "the hooks or their inputs differ from the recording",
    "refresh": "the rejection or renewal of the credentials differs from the recording",
    "conversation": "the session that is resumed differs from the recording",
    "section": "the sections of the system prompt, or which of them are volatile, differ from the recording",
    "memory": "the conversation is compacted at another point than in the recording",
    "keep": "the result that is too long differs from the recording",
    "limit": "the budget, or the recorded amount spent, has changed",
    "background": "background agents end at other points than in the recording",
    "elapsed": "the agent reads the clock at other points than in the recording",
    "compacted": "the conversation is compacted on request at another point than in the recording",
    "abort": "the run was stopped at a point in the recording that it did not reach now",
}
"""The probable cause if such a question differs from the recorded one."""

Asked = Callable[[str], int]
"""Returns how many requests of a lane were sent so far."""


class Answers:
    """The recorded answers of the world, some of them used."""

    def __init__(self, recorded: list[RecordedAnswer], asked: Asked, renaming: Renaming) -> None:
        """Use the answers of a fixture."""
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
        """The unused answers, in recorded order."""
        return [answer for answer in self._recorded if id(answer) not in self._given]

    def of(self, lane: str, question: WorldQuestion) -> RecordedAnswer | None:
        """Return the recorded answer to a question by its lane, kind and key, without using it."""
        # Most questions are polls for a message or an abort that never came: they must cost nothing.
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
        """Return an answer and mark it as used."""
        self._given.add(id(answer))
        self._renaming.hear(lambda: canonical(answer.answer))
        return answer.answer

    def told(self, exchange: WorldExchange) -> None:
        """Note that the loop reported where it was stopped."""
        if exchange.question.kind != "abort":
            return
        lane, point = exchange.place.lane, exchange.question.key
        for each in _points(point):
            recorded = self.of(lane, WorldQuestion("abort", each))
            if recorded is not None:
                self.give(recorded)
                return

    def stops_in(self, lane: str) -> bool:
        """Return whether a run of a lane was stopped in the recording."""
        return lane in self._stopped

    def stops(self, lane: str, point: str, count: int) -> bool:
        """Return whether the run was stopped there in the recording; called for each event of a stream."""
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
    """Return where the run that stops here may have been told to stop.

    A run that was stopped while its request was being sent could not know whether it had been sent. If
    it had not, the recorded stop follows fewer requests, and is found before this one is sent.
    """
    before, _, after = point.partition(":unsent:")
    return (point, f"{before}:streaming:{after}") if after else (point,)


class RecordedAbort(Abort):
    """Stops a run where it was stopped in the recording, and nowhere else."""

    def __init__(self, answers: Answers) -> None:
        """Use the recorded answers."""
        super().__init__()
        self._answers = answers

    def stop(self) -> None:
        """Does nothing: the recording determines where the run is stopped."""

    def under(self) -> Abort:
        """Return itself: the stop of a run that another one started is recorded in its own lane."""
        return self

    def reached(self, point: str, count: int) -> bool:
        """Return whether the run was stopped here; a later run of the same lane continues."""
        return self._answers.stops(lane_here(), point, count)

    async def wait(self) -> None:
        """Wait forever: answers of a replay come immediately, so nothing needs to be interrupted."""
        await asyncio.get_running_loop().create_future()


LEFT_SECONDS = 30.0
"""How long a replay waits for an agent that was abandoned in the recording, and is awaited now. Our choice."""


LOOK_SECONDS = 0.02
"""How often it checks meanwhile whether the replay has diverged elsewhere. Our choice."""


async def never(error: Callable[[], BaseException], look: Callable[[], None] | None = None) -> Any:
    """Wait until the caller is cancelled, because the continuation is unknown; raise if nothing cancels it.

    `look` raises if there is nothing more to wait for.
    """
    for _ in range(int(LEFT_SECONDS / LOOK_SECONDS)):
        if look is not None:
            look()
        await asyncio.sleep(LOOK_SECONDS)
    raise error()


def silence(kind: AskKind) -> Any:
    """Return the meaning of a missing answer to one of the `SILENT` questions."""
    return [] if kind in ("steering", "follow_up", "background") else None


def lane_here() -> str:
    """Return the lane of the caller."""
    here = tracing.place()
    return here.lane if here else "main"


def same_question(recorded: WorldQuestion, came: WorldQuestion, renaming: Renaming) -> bool:
    """Return whether two questions are the same, ignoring secrets."""
    old, new = canonical(meant(recorded)), canonical(meant(came))
    return renaming.same(old, new if old == new else renaming.clean_text(new))


def meant(question: WorldQuestion) -> Any:
    """Return the compared form of a question: for approvals without the wording and the tool's name, which may change.

    What the loop observed is not part of the question, because it depends on the order of events.
    """
    if question.kind in ECHOED:
        return None
    match question.kind, question.asked:
        case "consent", {"about": {"tool": _, **about}}:
            return about
        case _:
            return question.asked
