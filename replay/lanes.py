"""Lanes: in which order recorded requests may be asked, and which of them a question is.

A request may be asked once all those are answered that were answered before it when it was recorded.
In a sequential agent that leaves exactly one; requests that were in flight together may come in any
order. Questions are compared byte for byte first; only where that fails is the canonical form built.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agentobs.records.canonical import MEANINGFUL_HEADERS, canonical, parse
from agentobs.records.exchanges import Question
from agentobs.redaction import redact
from replay.fixture import Ask, Fixture


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A question that no recorded request of its lane is."""

    expected: Ask | None
    """The request that was due; None where the lane had no more."""
    elsewhere: Ask | None
    """A later request of the lane that asks exactly this."""


class Lane:
    """The requests of one lane of a fixture, some of them asked."""

    def __init__(self, fixture: Fixture, name: str) -> None:
        """Take the lane called `name`; one that was not recorded is empty."""
        self._fixture = fixture
        self.name = name
        self.asks = [ask for ask in fixture.asks if ask.lane == name]
        self._left = list(self.asks)
        self.turns = 0

    @property
    def asked(self) -> int:
        """How many requests were asked."""
        return len(self.asks) - len(self._left)

    @property
    def left(self) -> list[Ask]:
        """The requests that were not asked yet."""
        return list(self._left)

    def due(self) -> list[Ask]:
        """Return the requests that may be asked now, in recorded order."""
        left = {ask.number for ask in self._left}
        due: list[Ask] = []
        for place, ask in enumerate(self._left):
            ready = not place if ask.after is None else not (ask.after & left)
            if ready:
                due.append(ask)
        return due

    def take(self, question: Question) -> Ask | Mismatch:
        """Return the request that `question` is, which is then asked; or how it misses."""
        due = self.due()
        for same in (self._same_bytes, self._same_meaning):
            for ask in due:
                if same(ask, question):
                    self._left.remove(ask)
                    self.turns = max(self.turns, ask.turn or 0) if _made_turn(ask) else self.turns
                    return ask
        elsewhere = next((ask for ask in self._left if self._same_meaning(ask, question)), None)
        return Mismatch(self._nearest(due, question), elsewhere)

    def _nearest(self, due: list[Ask], question: Question) -> Ask | None:
        """Return the due request to compare with: one of the same path where there is one."""
        same = [ask for ask in due if ask.path == question.path]
        return next(iter(same or due), None)

    def _same_bytes(self, ask: Ask, question: Question) -> bool:
        return same_head(ask, question) and self._fixture.body(ask.number) == question.body

    def _same_meaning(self, ask: Ask, question: Question) -> bool:
        if not same_head(ask, question):
            return False
        recorded, came = self._fixture.body(ask.number), redact(question.body)
        if recorded == came:
            return True
        old, new = value_of(recorded), value_of(came)
        return old is not None and new is not None and canonical(old) == canonical(new)


def same_head(ask: Ask, question: Question) -> bool:
    """Return whether method, path and the headers that mean something are the recorded ones."""
    old, new = ask.headers, question.headers
    if ask.method != question.method or any(old.get(n) != new.get(n) for n in MEANINGFUL_HEADERS):
        return False
    return ask.path == question.path or ask.path == redact(question.path.encode()).decode()


def value_of(body: bytes) -> Any:
    """Return the parsed JSON of a body, or None where it is none."""
    try:
        return parse(body)
    except (ValueError, RecursionError):
        return None


def _made_turn(ask: Ask) -> bool:
    return ask.answer.status == 200 and ask.answer.ending == "complete"
