"""Segment import: adds a segment that was recorded elsewhere to a home, either completely or not at all."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from agentobs import world
from agentobs.recording.journal.home import Home, sync_directory
from agentobs.recording.journal.segments import Segment, content_path, facts_path

_STAGING = ".landing-"


class ImportedLine(NamedTuple):
    """One line of an imported segment."""

    kind: str
    value: Mapping[str, Any]
    is_content: bool
    """Whether it belongs in the content file."""


def import_segment(home: Home, segment_id: str, lines: Iterable[ImportedLine]) -> None:
    """Write a segment into a staging directory of the home, and move it to the other segments when it is synced.

    The facts are moved last, because readers ignore a segment without facts. Existing content is overwritten.

    Args:
        home: the home that receives it.
        segment_id: the ID of the new segment, 32 hex digits; must be unused in this home.
        lines: the lines, content before the facts that refer to it.

    Raises:
        OSError: the segment cannot be written; the home is unchanged then.
    """
    staging = Home(home.path / f"{_STAGING}{world.new_id()}")
    staging.segments.mkdir(mode=0o700, parents=True)
    staging.path.chmod(0o700)
    try:
        segment = Segment(staging, segment_id=segment_id)
        try:
            for line in lines:
                file = segment.content if line.is_content else segment.facts
                file.append(line.kind, dict(line.value))
        finally:
            segment.close()
        for path_of in (content_path, facts_path):
            if path_of(staging, segment_id).exists():
                path_of(staging, segment_id).rename(path_of(home, segment_id))
        for folder in (home.segments, home.path):
            sync_directory(folder)
        with contextlib.suppress(OSError):  # it may belong to another user
            sync_directory(home.path.parent)
    finally:
        shutil.rmtree(staging.path, ignore_errors=True)


def clear_staging(home: Home) -> None:
    """Remove files that were left behind by a process that died during an import."""
    for path in home.path.glob(f"{_STAGING}*"):
        shutil.rmtree(path, ignore_errors=True)
