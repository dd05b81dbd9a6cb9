"""Pending calls: the tool calls in the responses of a session, so that a function that runs knows its call.

A foreign agent calls its functions itself, and does not name the call. So the newest responses of each
session are kept, and parsed when such a function runs: its call is the first one with its name and input
that no function has taken.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from agentobs.provider.content_encoding import decoded
from agentobs.provider.registry import dialect_of
from agentobs.records.exchanges import ModelExchange, Place
from agentobs.runtime import process

ANSWERS_MAX = 64
"""How many responses of a session are kept. Our choice: concurrent agents may delay their calls."""
ANSWER_BYTES = 4 * 1024 * 1024
"""The maximum size of a response that is parsed for its calls. Our choice."""
SESSIONS_MAX = 256
"""For how many sessions responses are kept. Our choice."""

Fits = Callable[[Any], bool]
"""Returns whether the input of a call is that of a function."""


@dataclass(slots=True)
class _Answered:
    """A response, and those of its calls that were taken."""

    exchange: ModelExchange
    taken: set[int]
    calls: list[tuple[str, str, Any]] | None = None
    """Its calls, once they were parsed."""

    def of(self, name: str, fits: Fits) -> str | None:
        """Take the first call with a name whose input fits, and return its ID."""
        if self.calls is None:
            dialect = dialect_of(self.exchange.question.path)
            made = dialect.facts(decoded(self.exchange).answer).calls
            self.calls = [(call.id, call.name, call.input) for call in made]
        for at, (tool_use_id, called, given) in enumerate(self.calls):
            if called == name and at not in self.taken and fits(given):
                self.taken.add(at)
                return tool_use_id
        return None


@dataclass(slots=True)
class _Session:
    answers: deque[_Answered] = field(default_factory=lambda: deque(maxlen=ANSWERS_MAX))
    taken: dict[str, set[int]] = field(default_factory=dict)
    """The calls that were taken from responses in progress, by attempt."""
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How many functions ran without a call of the model, by lane and name."""


class Outstanding:
    """The calls of each session that no function has taken."""

    def __init__(self) -> None:
        """Start with none."""
        self._sessions: dict[str, _Session] = {}
        self._lock = threading.Lock()

    def heard(self, exchange: ModelExchange) -> None:
        """Keep a response."""
        if sum(len(chunk.data) for chunk in exchange.answer.chunks) > ANSWER_BYTES:
            return
        with self._lock:
            session = self._session(exchange.place.session_id)
            taken = session.taken.pop(exchange.attempt_id, set())
            session.answers.append(_Answered(exchange, taken))

    def take(self, here: Place, name: str, fits: Fits) -> tuple[str, str] | None:
        """Return lane and ID of the call that a function runs for; None if there is none.

        The newest response takes precedence: the calls of a broken response are made again by its retry.
        """
        coming = process.unfinished(here.session_id)
        with self._lock:
            session = self._session(here.session_id)
            answers = [*reversed(session.answers)]
            for exchange in coming:
                taken = session.taken.setdefault(exchange.attempt_id, set())
                answers.insert(0, _Answered(exchange, taken))
            for own in (True, False):
                for each in answers:
                    lane = each.exchange.place.lane
                    if (lane == here.lane) is own and (found := each.of(name, fits)) is not None:
                        return lane, found
        return None

    def number(self, here: Place, name: str) -> str:
        """Return an ID for a function without a call of the model: how often it ran in its lane."""
        with self._lock:
            counts = self._session(here.session_id).counts
            counts[here.lane, name] += 1
            return f"{name}@{counts[here.lane, name]}"

    def forget(self) -> None:
        """Forget everything."""
        with self._lock:
            self._sessions.clear()

    def _session(self, session_id: str) -> _Session:
        session = self._sessions.pop(session_id, None) or _Session()
        self._sessions[session_id] = session
        if len(self._sessions) > SESSIONS_MAX:
            del self._sessions[next(iter(self._sessions))]
        return session
