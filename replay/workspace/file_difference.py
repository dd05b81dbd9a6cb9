"""The difference between the files at the end of a run and the recorded ones, as text and JSON of limited size."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from agentobs.effects.workspaces.file_changes import Change
from agentobs.records.display import printable

SHOWN = 10
"""The maximum number of paths that are listed in a report. Our choice."""
PATCH_BYTES = 32 * 1024
"""The maximum number of bytes of a patch that are kept. Our choice."""
PATCH_LINES = 200
"""The maximum number of lines of a patch that are shown in a text. Our choice."""


@dataclass(frozen=True, slots=True)
class FileDifference:
    """How files differ from recorded ones."""

    changes: tuple[Change, ...] = ()
    """The files that differ, by path; the earlier state is the recorded one."""
    patch: str = ""
    """The difference as a patch, at most `PATCH_BYTES`."""
    is_cut: bool = False
    """Whether the patch is incomplete."""

    @property
    def is_equal(self) -> bool:
        """Whether the files are equal, including links and executable bits."""
        return not self.changes

    def line(self) -> str:
        """Return one line that states whether the files at the end are equal, and which ones differ."""
        if self.is_equal:
            return "files at the end: equal to the recorded ones"
        count = len(self.changes)
        named = [f"{shown_path(each.path)} ({each.kind})" for each in self.changes[:SHOWN]]
        more = [f"and {count - SHOWN} more"] if count > SHOWN else []
        return (
            f"files at the end: {count} differ{'s' * (count == 1)} from the recorded ones: "
            + ", ".join([*named, *more])
        )

    def patch_lines(self) -> list[str]:
        """Return the lines of the patch that a report shows; `-` is recorded and `+` is new."""
        lines = [printable(each.replace("\t", "    ")) for each in self.patch.splitlines()]
        is_cut = self.is_cut or len(lines) > PATCH_LINES
        return [*lines[:PATCH_LINES], *(["... the diff continues"] if is_cut else [])]

    def as_json(self) -> dict[str, Any]:
        """Return the difference as a JSON value."""
        return {
            "equal": self.is_equal,
            "changes": [
                {
                    "path": shown_path(each.path),
                    "previous_path": shown_path(each.old_path) if each.old_path else None,
                    "change": each.kind,
                    "lines_added": each.lines_added,
                    "lines_removed": each.lines_removed,
                }
                for each in self.changes
            ],
            "diff": self.patch,
            "diff_is_complete": not self.is_cut,
        }


def shown_path(path: str) -> str:
    """Return a path as text without control characters; bytes that are not UTF-8 are escaped."""
    return printable(os.fsencode(path).decode("utf-8", "backslashreplace"))


__all__ = ["FileDifference", "shown_path"]
