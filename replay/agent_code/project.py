"""The project directory: the folder that contains the agent's files and must contain its entry.

It is the current directory, unless a trial runs the agent in another one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

_project: Path | None = None


def project() -> Path:
    """Return the absolute path of the directory that contains the agent's files."""
    return _project or Path.cwd()


@contextlib.contextmanager
def project_at(directory: Path) -> Iterator[None]:
    """Make `directory` the project directory while the context is open, independent of the current directory."""
    global _project
    before, _project = _project, directory
    try:
        yield
    finally:
        _project = before
