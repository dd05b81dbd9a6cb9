"""Forks: a replay up to a turn that continues with the real provider, with another model, prompt or option.

Everything after the recorded path is live: the model, the tools, approvals, and time, including the calls of the last
recorded response. All of it, including the recorded part, is recorded as a new session.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agentobs.errors import UsageError
from agentobs.provider.registry import calls_of, message_of
from agentobs.records.exchanges import ModelExchange, Recording
from replay.comparison.placeholders import has_masked
from replay.fixture.format import Fixture


@dataclass(frozen=True, slots=True)
class Fork:
    """Where a replay continues live, and what changes from there on."""

    turn: int
    """The turn of the main lane whose response is the last recorded one, from 1."""
    model: str | None = None
    """The model from then on; None: the agent's own."""
    system: str | None = None
    """The system prompt from then on; None: the agent's own."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Other options of requests, such as `{"max_tokens": 2000}`; the value None removes one."""

    def changed(self, body: bytes) -> bytes | None:
        """Return the changed body of a request; None if it is not changed.

        Raises:
            UsageError: it must be changed, and is not a JSON object.
        """
        if self.model is None and self.system is None and not self.options:
            return None
        try:
            asked = json.loads(body)
        except (ValueError, RecursionError):
            asked = None
        if not isinstance(asked, dict):
            raise UsageError("a request of a fork is not a JSON object, and cannot be changed")
        if self.model is not None:
            asked["model"] = self.model
        if self.system is not None:
            asked["system"] = self.system
        for name, value in self.options.items():
            if value is None:
                asked.pop(name, None)
            else:
                asked[name] = value
        return json.dumps(asked, ensure_ascii=False, separators=(",", ":")).encode(
            "utf-8", "surrogatepass"
        )


def tools_of(fixture: Fixture, turn: int) -> list[str]:
    """Return the tools that run live as soon as a fork at that turn starts: those that its recorded response calls,
    and recorded functions that the agent called afterwards.
    """
    asks = [ask for ask in fixture.asks if (ask.lane, ask.turn) == ("main", turn)]
    called = [call for ask in asks for call in calls_of(ask.path, ask.answer)]
    functions = [t for t in fixture.tools if t.is_function and (t.lane, t.turn) == ("main", turn)]
    return sorted({call.name for call in called} | {t.question.name for t in functions})


def message_ids(fixture: Fixture, turn: int) -> frozenset[str]:
    """Return the IDs of the messages that a fork at a turn may replay: all except later ones of the main lane."""
    asks = [ask for ask in fixture.asks if ask.lane != "main" or (ask.turn or 0) <= turn]
    found = (message_of(ask.path, ask.answer).id for ask in asks)
    return frozenset(each for each in found if each is not None)


def can_fork(recording: Recording, turn: int) -> bool:
    """Return whether a session can be forked at a turn, which needs that turn and the original signatures.

    A session from a bundle lacks the signatures in which an organization ID was readable.
    """
    models = [each for each in recording.exchanges if isinstance(each, ModelExchange)]
    if any(has_masked(each.answer.body) for each in models):
        return False
    return any((each.place.lane, each.place.turn) == ("main", turn) for each in models)
