"""The divergence: the first difference between a replay and its recording, as a value.

`text` renders it for humans (see `replay.divergence.rendering`), and `json` for programs.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

from anthropic import AnthropicError

from agentobs.errors import RecordingError, ReplayEnd, UsageError
from agentobs.redaction import redact
from replay.divergence.divergence_facts import DivergenceFacts
from replay.divergence.rendering import COLUMNS, explanation, report_text

SHOWN = 6
"""The maximum number of differences that a report shows; the others are counted."""
VERSION = 1
"""The version of the JSON. Within a version, keys may be added, but not changed or removed."""


@dataclass(frozen=True, slots=True)
class Divergence(DivergenceFacts):
    """The first difference between a recording and its replay, as a report."""

    def text(self, columns: int = COLUMNS) -> str:
        """Return the report as text, without secrets.

        Args:
            columns: the maximum width of the lines, except for commands.
        """
        return _clean(report_text(self, columns))

    def explanation(self, columns: int = COLUMNS) -> str:
        """Return the causal chain from the difference to its origin, as text without secrets."""
        return _clean(explanation(self, columns))

    def json(self) -> str:
        """Return all facts as JSON, without secrets."""
        value = {"agentobs_divergence": VERSION, **dataclasses.asdict(self)}
        return _clean(json.dumps(value, ensure_ascii=False, indent=2, default=str))


class DivergenceError(AnthropicError, ReplayEnd):
    """Raised when a replay diverges from its recording, and again by each later request.

    It is an `AnthropicError`, so that the SDK neither retries nor wraps it.

    Attributes:
        divergence: the description of the divergence.
    """

    def __init__(self, divergence: Divergence) -> None:
        """Create the error for a divergence."""
        self.divergence = divergence
        super().__init__(divergence.text())


class ReplayStopped(AnthropicError, ReplayEnd):
    """Raised instead of a response if `until` has ended the recorded path. It does not mean that anything failed."""


class ReplayEnded(BaseException):
    """Raised if an agent catches `ReplayStopped` and continues; `except Exception` does not catch it."""


class NotNamedError(UsageError, AnthropicError, ReplayEnd):
    """Raised if a mutating tool that was not named would run.

    It is raised again by each later request, because an agent may treat it as a failure of the tool.
    """


class NotSendableError(RecordingError, AnthropicError, ReplayEnd):
    """Raised instead of sending a request that the provider would reject, because its signed values were altered.

    It is raised again by each later request.
    """


class NotAffordableError(UsageError, AnthropicError, ReplayEnd):
    """Raised instead of sending a request of a fork whose cost could exceed the limit.

    It is raised again by each later request.
    """


def _clean(text: str) -> str:
    return redact(text.encode("utf-8", "replace")).decode()
