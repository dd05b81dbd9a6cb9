"""Forks: a replay up to a turn that continues with the real provider, with another model, prompt or option.

Everything after the recorded path is live: the model, the tools, approvals, and time, including the calls of the last
recorded response. All of it, including the recorded part, is recorded as a new session.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentobs.errors import UsageError
from agentobs.provider.registry import calls_of, dialect_of, message_of
from agentobs.records.exchanges import ModelExchange, Recording
from replay.comparison.placeholders import has_masked
from replay.fixture.format import Fixture
from replay.scenario.live_meter import LiveMeter
from replay.workspace.recorded_workspace import RecordedWorkspace


@dataclass(frozen=True, slots=True)
class Fork:
    """The point at which a replay continues live, and the changes of all later requests."""

    turn: int
    """The turn of the main lane with the last recorded response, from 1."""
    model: str | None = None
    """The model of the live requests; None to keep the agent's model."""
    system: str | None = None
    """The system prompt of the live requests; None to keep the agent's prompt."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Other options of the live requests, such as `{"max_tokens": 2000}`; the value None removes an option."""
    prompt: str | None = None
    """A text for the model, after the results of the last replayed response; None for none."""
    workspace: RecordedWorkspace | None = None
    """The recorded files in which the agent runs; None for those of the fixture, if it has any."""
    output: Path | None = None
    """A new directory for the recorded files, which is kept; None for a temporary directory."""
    meter: LiveMeter | None = field(default=None, repr=False)
    """Adds up the live requests, and limits their cost; the recorder of the fork must have it as a backend."""

    def changed(self, path: str, body: bytes) -> bytes | None:
        """Return the changed body of a request; None if the body is not changed.

        If the path names the model, as on Bedrock and Vertex, the body does not: see `LiveChanges.path`.

        Raises:
            UsageError: the body must be changed but is not a JSON object.
        """
        model = self.model if dialect_of(path).model_in(path) is None else None
        if model is None and self.system is None and not self.options:
            return None
        try:
            request = json.loads(body)
        except (ValueError, RecursionError):
            request = None
        if not isinstance(request, dict):
            raise UsageError("a request of a fork is not a JSON object, and cannot be changed")
        if model is not None:
            request["model"] = model
        if self.system is not None:
            request["system"] = self.system
        for name, value in self.options.items():
            if value is None:
                request.pop(name, None)
            else:
                request[name] = value
        return json.dumps(request, ensure_ascii=False, separators=(",", ":")).encode(
            "utf-8", "surrogatepass"
        )


def tools_of(fixture: Fixture, turn: int) -> list[str]:
    """Return the names of the tools that run live as soon as a fork at a turn starts.

    These are the tools that the recorded response of the turn calls, and the recorded functions that the agent called
    after that response.
    """
    requests = [each for each in fixture.requests if (each.lane, each.turn) == ("main", turn)]
    called = [call for each in requests for call in calls_of(each.path, each.answer)]
    functions = [t for t in fixture.tools if t.is_function and (t.lane, t.turn) == ("main", turn)]
    return sorted({call.name for call in called} | {t.question.name for t in functions})


def message_ids(fixture: Fixture, turn: int) -> frozenset[str]:
    """Return the IDs of the messages that a fork at a turn may replay: all except later messages of the main lane."""
    requests = [
        each for each in fixture.requests if each.lane != "main" or (each.turn or 0) <= turn
    ]
    found = (message_of(each.path, each.answer).id for each in requests)
    return frozenset(each for each in found if each is not None)


def can_fork(recording: Recording, turn: int) -> bool:
    """Return whether a session can be forked at a turn: it must have that turn and the original signatures.

    A session from a bundle lacks the signatures in which an organization ID was readable.
    """
    models = [each for each in recording.exchanges if isinstance(each, ModelExchange)]
    if any(has_masked(each.answer.body) for each in models):
        return False
    return any((each.place.lane, each.place.turn) == ("main", turn) for each in models)
