"""Forking: a replay up to a turn that goes on with the real provider, with another model, prompt or option.

Whatever comes after the recorded path is live: the model, the tools, whoever is asked, and time; the calls of its last
recorded answer, too. All of it, what was answered from the recording too, is recorded as a session of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agentobs.errors import UsageError
from agentobs.provider.messages import assemble, tool_uses
from agentobs.records.exchanges import ModelExchange, Recording
from replay.comparison.placeholders import has_masked
from replay.fixture.format import Fixture


@dataclass(frozen=True, slots=True)
class Fork:
    """Where a replay goes on live, and what is changed from there on."""

    turn: int
    """The turn of the main lane whose answer is the last recorded one, from 1."""
    model: str | None = None
    """The model that is asked from then on; None: whichever the agent asks."""
    system: str | None = None
    """The system prompt from then on; None: the agent's own."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Other options of requests, such as `{"max_tokens": 2000}`; None as a value takes one away."""

    def changed(self, body: bytes) -> bytes | None:
        """Return a request's body as it goes out; None where it goes as it is.

        Raises:
            UsageError: it has to be changed, and is no JSON object.
        """
        if self.model is None and self.system is None and not self.options:
            return None
        try:
            asked = json.loads(body)
        except (ValueError, RecursionError):
            asked = None
        if not isinstance(asked, dict):
            raise UsageError("a request of a fork is no JSON object, and cannot be changed")
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
    """Return the tools that run for real as soon as a fork at that turn begins: those that its recorded answer calls,
    and recorded functions that the agent called after it by itself.
    """
    answers = [a.answer for a in fixture.asks if (a.lane, a.turn) == ("main", turn)]
    called = [call for a in answers for call in tool_uses(assemble(a.headers, a.body))]
    functions = [t for t in fixture.tools if t.is_function and (t.lane, t.turn) == ("main", turn)]
    return sorted({str(c.get("name")) for c in called} | {t.question.name for t in functions})


def message_ids(fixture: Fixture, turn: int) -> frozenset[str]:
    """Return the ids of the messages that a fork at a turn may replay: all but later ones of the main lane."""
    given = [a.answer for a in fixture.asks if a.lane != "main" or (a.turn or 0) <= turn]
    return frozenset(
        str(message["id"]) for a in given if "id" in (message := assemble(a.headers, a.body))
    )


def can_fork(recording: Recording, turn: int) -> bool:
    """Return whether a session can be forked at a turn, which needs that turn and the original signatures.

    A session from a bundle lacks the signatures in which an organization ID was readable.
    """
    models = [each for each in recording.exchanges if isinstance(each, ModelExchange)]
    if any(has_masked(each.answer.body) for each in models):
        return False
    return any((each.place.lane, each.place.turn) == ("main", turn) for each in models)
