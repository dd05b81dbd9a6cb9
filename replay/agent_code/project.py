"""The project directory, which contains the agent's files and must contain its entry.

It is the current directory, except in a trial that runs the agent in a different directory.
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
        """None for the current directory."""


def project() -> Path:
    """Return the absolute path of the directory that contains the agent's files."""
    return process.state(State).directory or Path.cwd()


@contextlib.contextmanager
def project_at(directory: Path) -> Iterator[None]:
    """Make `directory` the project directory while the context is open, independent of the current directory."""
    state = process.state(State)
    previous, state.directory = state.directory, directory
    try:
        yield
    finally:
        state.directory = previous
