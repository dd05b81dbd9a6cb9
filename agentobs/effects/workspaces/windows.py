"""Windows: what is known about the time between two snapshots of a session, until its facts are emitted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from agentobs.effects.workspaces.repository_states import RepositoryState
from agentobs.effects.workspaces.snapshots import Snapshot

Source = Literal["start", "request", "end"]


class Request(NamedTuple):
    """A request to a model that has been sent."""

    attempt_id: str
    session_id: str
    started_ns: int
    lane: str


@dataclass(slots=True)
class Taken:
    """A snapshot that was taken while an agent ran."""

    snapshot: Snapshot
    repository: RepositoryState | None
    """The state of the user's repository; None if there is none."""
    size: tuple[int, int] | None = None
    """The number of files and their bytes, when known."""


@dataclass(slots=True)
class Window:
    """What is known about the time between two snapshots of a session, until its facts are emitted."""

    before: Taken | None
    """The earlier snapshot; None for the first one of the session."""
    after: Taken
    previous_state: int | None
    state: int
    rows: list[tuple[Source, Request | None]]
    """The reasons for the later snapshot."""


__all__ = ["Request", "Source", "Taken", "Window"]
