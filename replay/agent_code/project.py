"""The project directory: the folder that contains the agent's files and must contain its entry.

It is the current directory, unless a trial runs the agent in another one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from agentobs.runtime import process


class State:
    """The project directory of this process."""

    def __init__(self) -> None:
        self.directory: Path | None = None
        """None stands for the current directory."""


def project() -> Path:
    """Return the absolute path of the directory that contains the agent's files."""
    return process.part(State).directory or Path.cwd()


@contextlib.contextmanager
def project_at(directory: Path) -> Iterator[None]:
    """Make `directory` the project directory while the context is open, independent of the current directory."""
    state = process.part(State)
    before, state.directory = state.directory, directory
    try:
        yield
    finally:
        state.directory = before
