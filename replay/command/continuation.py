"""The live continuation of a command after its recorded responses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from agentobs.errors import UsageError
from replay.command.recorded_command import RecordedCommand
from replay.fixture.format import Fixture


@dataclass(frozen=True, slots=True)
class ReplayedPart:
    """The run of a command up to the turn with the last recorded response."""

    fixture: Fixture
    turn: int
    """The turn of the main conversation with the last recorded response, from 1."""
    command: RecordedCommand
    """The command, with its arguments for `directory`."""
    directory: Path
    """The directory in which it runs."""
    environment: Mapping[str, str] = field(repr=False)
    """Its environment, without the variables that direct it to a server."""
    url: str
    """The base URL of the server that answers from the fixture."""
    mark: str = field(repr=False)
    """The value of the header `LIVE_HEADER` with which that server marks a request for the provider."""
    end: Callable[[str], None] = field(repr=False)
    """Ends the command, with the reason."""
    files: Path | None = None
    """The directory with the recorded files in which it runs; None if it runs elsewhere."""


class Continued(Protocol):
    """A continuation that is ready for requests."""

    @property
    def variables(self) -> Mapping[str, str]:
        """The environment variables that direct the command to the continuation."""

    @property
    def problem(self) -> UsageError | None:
        """Why no request was sent to the provider although the recorded part was over; None if there is no such
        reason.
        """

    def close(self, exit_code: int) -> tuple[str, ...]:
        """End the recorded sessions, and return their IDs."""


class Continuation(Protocol):
    """Answers the requests after the recorded responses."""

    def prepared(self, fixture: Fixture, turn: int) -> Fixture:
        """Return the fixture with responses that the continuation accepts in a history.

        Raises:
            RecordingError: there are no such responses.
        """

    def opened(self, part: ReplayedPart) -> AbstractContextManager[Continued]:
        """Return a context in which the continuation answers."""
