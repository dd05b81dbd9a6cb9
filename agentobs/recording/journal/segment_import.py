"""Segment import: a segment that was not recorded in this home appears completely or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from agentobs import world
from agentobs.recording.journal.home import Home, sync_directory
from agentobs.recording.journal.segments import Segment, content_path, facts_path

_STAGING = ".landing-"


class Landed(NamedTuple):
    """One line of such a segment."""

    kind: str
    value: Mapping[str, Any]
    is_content: bool
    """Whether it belongs in the content file."""


def land(home: Home, segment_id: str, lines: Iterable[Landed]) -> None:
    """Write a segment next to the home's other segments, and move it to its place when it is sealed and synced.

    Its facts are moved last: until then no reader sees it, and existing content is overwritten.

    Args:
        home: the home that receives it.
        segment_id: the ID of the segment, 32 hex digits; no segment of the home has it.
        lines: the lines, content before the facts that refer to it.

    Raises:
        OSError: it cannot be written; nothing of it is left then.
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
        sync_directory(home.segments)
    finally:
        shutil.rmtree(staging.path, ignore_errors=True)


def clear_staging(home: Home) -> None:
    """Remove files that were left behind by a process that died during an import."""
    for path in home.path.glob(f"{_STAGING}*"):
        shutil.rmtree(path, ignore_errors=True)
