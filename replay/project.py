"""The project directory: the folder that the agent's files lie under, and its entry must lie under.

It is the current directory, unless a trial runs the agent in another one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

_project: Path | None = None


def project() -> Path:
    """Return the directory that the agent's files lie under, absolute."""
    return _project or Path.cwd()


@contextlib.contextmanager
def project_at(directory: Path) -> Iterator[None]:
    """Make `directory` the project directory while the context is open, whatever the current directory is."""
    global _project
    before, _project = _project, directory
    try:
        yield
    finally:
        _project = before
