"""The recorded answers to the questions that the agent loop sends to the world, except for LLM requests and tool calls.

An answer has a lane, a kind and a key. The key of a question about a call (its approval, validation or paths) is the ID
of the call. Other questions can recur with the same key, so they are answered only after their lane has sent as many
requests as in the recording. Empty answers to polls are not recorded; a missing answer means an empty answer.
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

ABOUT_CALLS: tuple[AskKind, ...] = ("consent", "check", "path")
"""Kinds of questions about a tool call; their key is the ID of the call."""

WHY: dict[AskKind, str] = {
    "consent": "the permission rules, the permission mode or the settings of the tool differ from the recording",
    "check": "the check of the tool was added or changed since the recording",
    "path": "the path parameters of the tool differ from the recording",
    "tool_set": "the optional tools differ from the recording",
    "spent_today": "the daily budget differs from the recording",
    "steering": "the agent checks for user messages at different points than in the recording",
    "follow_up": "the agent stops at a different point than in the recording",
    "hook": "the hooks or their inputs differ from the recording",
    "refresh": "the rejection or renewal of the credentials differs from the recording",
    "conversation": "the session that is resumed differs from the recording",
    "section": "the sections of the system prompt, or which of them are volatile, differ from the recording",
    "memory": "the conversation is compacted at a different point than in the recording",
    "keep": "the oversized tool result differs from the recording",
    "limit": "the budget, or the recorded amount spent, has changed",
    "background": "background agents end at different points than in the recording",
    "elapsed": "the agent reads the clock at different points than in the recording",
    "threshold": "the size of the conversation, the context window or the amount spent differs from the recording",
    "compacted": "the conversation is compacted on request at a different point than in the recording",
    "stored_messages": "the hooks before a request run at different points than in the recording",
    "abort": "in the recording, the run was stopped at a point that this replay did not reach",
}
"""The probable cause if a question of this kind differs from the recorded question."""

RequestCounter = Callable[[str], int]
"""Returns the number of requests that a lane has sent so far."""


class WorldAnswers:
    """The recorded answers of the world, and which of them were used."""

    def __init__(
        self, recorded: list[RecordedAnswer], request_count: RequestCounter, renaming: Renaming
    ) -> None:
        """Use the answers of a fixture."""
        self._recorded = [a for a in recorded if not is_inside_answer(a.lane)]
        self._request_count, self._renaming = request_count, renaming
        self._used: set[int] = set()
        self._by_key: dict[tuple[str, AskKind, str], list[RecordedAnswer]] = {}
        for answer in self._recorded:
            key = answer.lane, answer.question.kind, bare(answer.question.key)
            self._by_key.setdefault(key, []).append(answer)
        self._stopped = {a.lane for a in self._recorded if a.question.kind == "abort"}

    @property
    def total(self) -> int:
        """The number of recorded answers."""
        return len(self._recorded)

    @property
    def unused(self) -> list[RecordedAnswer]:
        """The unused answers, in recorded order."""
        return [answer for answer in self._recorded if id(answer) not in self._used]

    def find(self, lane: str, question: WorldQuestion) -> RecordedAnswer | None:
        """Return the recorded answer to a question, without marking it as used; None if there is none."""
        # This must be fast if nothing was recorded, because most questions are polls for a message or an abort.
        if not self._by_key:
            return None
        known = self._by_key.get((lane, question.kind, question.key))
        if known is None:
            key = bare(self._renaming.clean_text(question.key))
            known = self._by_key.get((lane, question.kind, key), [])
        for answer in known:
            if id(answer) in self._used:
                continue
            if question.kind in ABOUT_CALLS or answer.after <= self._request_count(lane):
                return answer
        return None

    def use(self, answer: RecordedAnswer) -> Any:
        """Mark an answer as used; return its value."""
        self._used.add(id(answer))
        self._renaming.note_answer(lambda: canonical(answer.answer))
        return answer.answer

    def note_abort(self, exchange: WorldExchange) -> None:
        """Use the recorded abort if the loop reports that it was stopped at the recorded point."""
        if exchange.question.kind != "abort":
            return
        lane, point = exchange.place.lane, exchange.question.key
        for each in _abort_names(point):
            recorded = self.find(lane, WorldQuestion("abort", each))
            if recorded is not None:
                self.use(recorded)
                return

    def was_stopped_in(self, lane: str) -> bool:
        """Return whether a run of a lane was stopped in the recording."""
        return lane in self._stopped

    def was_stopped_at(self, lane: str, point: str, count: int) -> bool:
        """Return whether the recorded run was stopped at this point; called for each event of a stream."""
        return any(self._has_abort(lane, each, count) for each in _abort_names(point))

    def _has_abort(self, lane: str, point: str, count: int) -> bool:
        if (lane, "abort", point) not in self._by_key:
            return False
        recorded = self.find(lane, WorldQuestion("abort", point))
        if recorded is None or not isinstance(recorded.answer, dict):
            return False
        stopped = recorded.answer.get("count")
        return isinstance(stopped, int) and count >= stopped


def _abort_names(point: str) -> tuple[str, ...]:
    """Return the names that an abort at this point may have in the recording.

    If a run is stopped while it sends a request, it is unknown whether the request was sent, so an abort before the
    response may be recorded under either name.
    """
    prefix, _, suffix = point.partition(":unsent:")
    return (point, f"{prefix}:streaming:{suffix}") if suffix else (point,)


class RecordedAbort(Abort):
    """Stops a run exactly at the points at which it was stopped in the recording."""

    def __init__(self, answers: WorldAnswers) -> None:
        """Use the recorded answers."""
        super().__init__()
        self._answers = answers

    def stop(self) -> None:
        """Do nothing, because the recording determines where the run stops."""

    def child(self) -> Abort:
        """Return this object, because the stop of a nested run is recorded in its own lane."""
        return self

    def should_stop(self, point: str, count: int) -> bool:
        """Return whether the run was stopped at this point in the recording."""
        return self._answers.was_stopped_at(current_lane(), point, count)

    async def wait(self) -> None:
        """Wait forever. Answers in a replay arrive immediately, so nothing has to be interrupted."""
        await asyncio.get_running_loop().create_future()


ABANDONED_WAIT_SECONDS = 30.0
"""How long a replay waits for an agent that was abandoned in the recording but is awaited in the replay. Our choice."""

CHECK_SECONDS = 0.02
"""The interval of the checks for a divergence during this wait. Our choice."""


async def wait_for_cancellation(
    error: Callable[[], BaseException], check: Callable[[], None] | None = None
) -> Any:
    """Wait until the caller is cancelled, because the recording does not contain an answer.

    Args:
        error: returns the exception to raise if the caller is not cancelled in time.
        check: is called repeatedly, and raises an exception if waiting is pointless.
    """
    for _ in range(int(ABANDONED_WAIT_SECONDS / CHECK_SECONDS)):
        if check is not None:
            check()
        await asyncio.sleep(CHECK_SECONDS)
    raise error()


def missing_answer(kind: AskKind) -> Any:
    """Return the empty answer that a missing answer to one of the `SILENT` questions means."""
    return [] if kind in ("steering", "follow_up", "background") else None


def current_lane() -> str:
    """Return the lane of the caller."""
    place = tracing.place()
    return place.lane if place else "main"


def same_question(recorded: WorldQuestion, live: WorldQuestion, renaming: Renaming) -> bool:
    """Return whether a live question matches the recorded question, up to a renaming of secrets."""
    old, new = canonical(compared_question(recorded)), canonical(compared_question(live))
    return renaming.matches(old, new if old == new else renaming.clean_text(new))


def compared_question(question: WorldQuestion) -> Any:
    """Return the parts of a question that are compared.

    In approvals, the wording and the name of the tool may change. Observations of the loop are not compared, because
    they depend on the order of events.
    """
    if question.kind in ECHOED:
        return None
    match question.kind, question.payload:
        case "consent", {"about": {"tool": _, **about}}:
            return about
        case "hook", {"event": "pre_request", **facts}:
            # The messages are part of the request, and are compared with it.
            return {name: value for name, value in facts.items() if name != "messages"}
        case _:
            return question.payload
