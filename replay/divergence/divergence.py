"""The divergence: the first request that differs from the recorded one, with all that is known about it.

It is a value: `replay.divergence.rendering` makes a report for people of it, `json` one for programs.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

from anthropic import AnthropicError

from agentobs.errors import RecordingError, ReplaySays, UsageError
from agentobs.redaction import redact
from replay.divergence.divergence_facts import DivergenceFacts
from replay.divergence.rendering import COLUMNS, explanation, told

SHOWN = 6
"""How many differences a report shows; of the rest, only the number."""
VERSION = 1
"""The version of a divergence's JSON. Within a version, keys are only added."""


@dataclass(frozen=True, slots=True)
class Divergence(DivergenceFacts):
    """The first difference between a recording and its replay, as a report."""

    def text(self, columns: int = COLUMNS) -> str:
        """Return the report for people, without secrets.

        Args:
            columns: the maximum width of a line, except for commands.
        """
        return _clean(told(self, columns))

    def explanation(self, columns: int = COLUMNS) -> str:
        """Return the trace from the difference to its origin, for people."""
        return _clean(explanation(self, columns))

    def json(self) -> str:
        """Return the same facts as JSON, without secrets."""
        value = {"agentobs_divergence": VERSION, **dataclasses.asdict(self)}
        return _clean(json.dumps(value, ensure_ascii=False, indent=2, default=str))


class DivergenceError(AnthropicError, ReplaySays):
    """Raised when a replay diverges from its recording, and again by every later request.

    It is an `AnthropicError`, so that the SDK neither retries nor wraps it.

    Attributes:
        divergence: the facts.
    """

    def __init__(self, divergence: Divergence) -> None:
        """Hold the facts of a divergence."""
        self.divergence = divergence
        super().__init__(divergence.text())


class ReplayStopped(AnthropicError, ReplaySays):
    """Raised instead of a response where `until` ends the recorded path; it is not an error."""


class ReplayEnded(BaseException):
    """Raised instead of `ReplayStopped` if an agent catches that and continues; not caught by `except Exception`."""


class NotNamedError(UsageError, AnthropicError, ReplaySays):
    """Raised if a mutating tool would have to run that was not named; raised again by every later request, because an
    agent may treat it as a tool failure.
    """


class NotSendableError(RecordingError, AnthropicError, ReplaySays):
    """Raised instead of sending a request whose signed values were altered, which the provider would reject; raised
    again by every later request.
    """


def _clean(text: str) -> str:
    return redact(text.encode("utf-8", "replace")).decode()
