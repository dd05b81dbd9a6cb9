"""Room: how much a home takes, and a word to its owner before a disk is full."""

from __future__ import annotations

import os

from agentobs import world
from agentobs.recording.journal.home import Home

VARIABLE = "AGENTOBS_WARN_BYTES"
WARN_BYTES = 5_000_000_000
"""From which size of a home on its owner is told, where `AGENTOBS_WARN_BYTES` says nothing else. Our choice."""


def home_bytes(home: Home) -> int:
    """Return how much room a home takes: segments, the published file, kept results, and what was set aside."""
    total = 0
    for folder, _, names in os.walk(home.path):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size  # noqa: PTH118
            except OSError:
                continue
    return total


def size_text(size: float) -> str:
    """Return a size for people."""
    if size < 1000:
        return f"{size:.0f} bytes"
    for unit in ("KB", "MB"):
        size /= 1000
        if size < 1000:
            return f"{size:,.1f} {unit}"
    return f"{size / 1000:,.1f} GB"


def warning(home: Home) -> str | None:
    """Return what to tell the owner of a home that takes more room than is usual, or None."""
    told = world.environ(VARIABLE) or ""
    most = int(told) if told.isdecimal() else WARN_BYTES
    size = home_bytes(home)
    if size <= most:
        return None
    return (
        f"{home.path} takes {size_text(size)}. agentobs prune --older-than 30d --content-only deletes what was said in "
        f"old sessions, without --content-only all of them; {VARIABLE} sets from when on this is said."
    )
