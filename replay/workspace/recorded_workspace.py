"""The recorded files of a session: at its start, at each turn, and at its end.

They are git trees, identified by their content. The trees of a session are in the shadow repository of its workspace.
Those of a fixture are in a git bundle next to its recording, and the key `workspace` of the fixture names them:

    {"bundle": "workspace.bundle", "name": "project", "directory": ".", "start": ID, "end": ID, "turns": {"1": ID},
     "left_out": ["*.bin"], "ignored": ["*.log"], "has_repository": true, "base": COMMIT}

With the key `base`, the bundle contains only the files that this git commit does not contain; see
`replay.workspace.base_commit`.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentobs.errors import UsageError
from replay.fixture.format import Fixture

KEY = "workspace"
"""The key in the first line of a fixture."""
BUNDLE = "workspace.bundle"
"""The name of the file with the trees, in the folder of a fixture."""


@dataclass(frozen=True, slots=True)
class RecordedWorkspace:
    """The recorded files of a session."""

    source: Path
    """Where the trees are: the file of a git bundle, or the directory with the objects of a git repository."""
    start: str
    """The tree at the start of the session."""
    end: str | None
    """The tree at its end; None if it is not known."""
    turns: Mapping[int, str] = field(default_factory=dict)
    """For each turn of the main lane, the tree before its tools ran."""
    name: str = "workspace"
    """The name of the directory that contained the files."""
    directory: str = "."
    """The working directory of the program, relative to this directory."""
    left_out: tuple[str, ...] = ()
    """Patterns of the files that were left out; see `is_left_out`."""
    ignored: tuple[str, ...] = ()
    """Patterns of ignored files, in addition to those in `.gitignore` files."""
    inexact_turns: frozenset[int] = frozenset()
    """The turns whose files may not be exact, because they changed while they were recorded, or were recorded late."""
    has_repository: bool = False
    """Whether the files were in a git repository; then a directory with them gets a new one, with one commit of the
    files at the start.
    """
    commit: str | None = None
    """The commit that was checked out in this repository at the start; None if there is none, or if it is unknown."""
    base: str | None = None
    """The commit that contains the files that a bundle leaves out; None if the source has all files."""
    uncaptured: tuple[str, ...] = ()
    """Files at the start whose content was not recorded, each with the reason, for messages."""
    links: Mapping[str, Path] = field(default_factory=dict)
    """Symbolic links to add, by their path in the workspace, such as one to installed packages; they are ignored in
    comparisons.
    """

    @property
    def trees(self) -> list[str]:
        """All trees, without repetitions; the first one is that of the start."""
        last = [self.end] if self.end is not None else []
        return list(dict.fromkeys([self.start, *self.turns.values(), *last]))

    def at_turn(self, turn: int) -> str:
        """Return the tree before the tools of a turn of the main lane ran.

        Raises:
            UsageError: the files were not recorded then.
        """
        if turn not in self.turns:
            known = f"it has the files of turns {min(self.turns)} to {max(self.turns)}"
            raise UsageError(
                f"no files were recorded at turn {turn}",
                where=self.name,
                todo=f"Choose another turn: {known if self.turns else 'none has files'}",
            )
        return self.turns[turn]

    def to_header(self) -> dict[str, Any]:
        """Return the value of the key `workspace` in a fixture."""
        return {
            "bundle": self.source.name,
            "name": self.name,
            "directory": self.directory,
            "start": self.start,
            **({"end": self.end} if self.end is not None else {}),
            "turns": {str(turn): tree for turn, tree in sorted(self.turns.items())},
            **({"left_out": list(self.left_out)} if self.left_out else {}),
            **({"ignored": list(self.ignored)} if self.ignored else {}),
            **({"has_repository": True} if self.has_repository else {}),
            **({"base": self.base} if self.base is not None else {}),
        }


def workspace_of(fixture: Fixture) -> RecordedWorkspace | None:
    """Return the recorded files of a fixture; None if it has none.

    Raises:
        UsageError: its bundle is not a regular file.
    """
    value = fixture.header.get(KEY)
    if value is None:
        return None
    source = fixture.path.absolute().with_name(value["bundle"])
    if source.is_symlink() or (source.exists() and not source.is_file()):
        raise UsageError(
            "the bundle of a fixture must be a regular file",
            where=str(source),
            todo="Restore this file, or freeze the session again with --workspace",
        )
    return RecordedWorkspace(
        source=source,
        start=value["start"],
        end=value.get("end"),
        turns={int(turn): tree for turn, tree in value.get("turns", {}).items()},
        name=value["name"],
        directory=value["directory"],
        left_out=tuple(value.get("left_out", ())),
        ignored=tuple(value.get("ignored", ())),
        has_repository=value.get("has_repository", False),
        base=value.get("base"),
    )


def is_left_out(path: str, patterns: Iterable[str]) -> bool:
    """Return whether a path matches one of some patterns: a file, a directory, or a pattern in which `*` matches any
    text, including `/`.
    """
    return any(
        fnmatch.fnmatchcase(path, each) or path.startswith(f"{each.rstrip('/')}/")
        for each in patterns
    )


__all__ = ["BUNDLE", "KEY", "RecordedWorkspace", "is_left_out", "workspace_of"]
