"""Pending calls: find the tool call of the model for which a recorded function runs.

A foreign agent calls its functions itself, without the ID of the tool call. Therefore the newest responses of each
session are kept, and are parsed when a recorded function runs. Its tool call is the first one with the same name and
input that has not been assigned to another run.
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
"""The maximum number of responses that are kept for a session. Our choice: concurrent agents may run their tools late.
"""
ANSWER_BYTES = 4 * 1024 * 1024
"""The maximum size of a response that is kept. Our choice."""
SESSIONS_MAX = 256
"""The maximum number of sessions for which responses are kept. Our choice."""

InputMatcher = Callable[[Any], bool]
"""Returns whether the input of a tool call matches the arguments of a function call."""


@dataclass(slots=True)
class _Response:
    """A response and its tool calls."""

    exchange: ModelExchange
    assigned: set[int]
    """The indexes of the calls that were assigned to a run of a function."""
    calls: list[tuple[str, str, Any]] | None = None
    """ID, name and input of each call; None until the response is parsed."""

    def assign(self, name: str, matches: InputMatcher) -> str | None:
        """Assign the first matching call with a name, and return its ID; None if there is none."""
        if self.calls is None:
            dialect = dialect_of(self.exchange.question.path)
            made = dialect.facts(decoded(self.exchange).answer).calls
            self.calls = [(call.id, call.name, call.input) for call in made]
        for at, (tool_use_id, tool_name, tool_input) in enumerate(self.calls):
            if tool_name == name and at not in self.assigned and matches(tool_input):
                self.assigned.add(at)
                return tool_use_id
        return None


@dataclass(slots=True)
class _Session:
    responses: deque[_Response] = field(default_factory=lambda: deque(maxlen=ANSWERS_MAX))
    assigned: dict[str, set[int]] = field(default_factory=dict)
    """The indexes of the assigned calls of responses in progress, by attempt."""
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """The number of functions that ran without a tool call of the model, by lane and name."""


class PendingCalls:
    """The tool calls of each session that have not been assigned to a run of a function."""

    def __init__(self) -> None:
        """Start without calls."""
        self._sessions: dict[str, _Session] = {}
        self._lock = threading.Lock()

    def add_response(self, exchange: ModelExchange) -> None:
        """Keep a response, unless it is too large."""
        if sum(len(chunk.data) for chunk in exchange.answer.chunks) > ANSWER_BYTES:
            return
        with self._lock:
            session = self._session(exchange.place.session_id)
            assigned = session.assigned.pop(exchange.attempt_id, set())
            session.responses.append(_Response(exchange, assigned))

    def take(self, here: Place, name: str, matches: InputMatcher) -> tuple[str, str] | None:
        """Return the lane and ID of the tool call for which a function runs; None if there is none.

        Newer responses take precedence, because a retry repeats the calls of a broken response.
        """
        unfinished = process.unfinished(here.session_id)
        with self._lock:
            session = self._session(here.session_id)
            responses = [*reversed(session.responses)]
            for exchange in unfinished:
                assigned = session.assigned.setdefault(exchange.attempt_id, set())
                responses.insert(0, _Response(exchange, assigned))
            for is_same_lane in (True, False):
                for each in responses:
                    lane = each.exchange.place.lane
                    if (lane == here.lane) is not is_same_lane:
                        continue
                    if (found := each.assign(name, matches)) is not None:
                        return lane, found
        return None

    def counted_id(self, here: Place, name: str) -> str:
        """Return an ID for a function that runs without a tool call of the model: its name and a count of such runs."""
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
