"""Disk usage of a home, and a warning if a home is large."""

from __future__ import annotations

import os

from agentobs import world
from agentobs.recording.journal.home import Home

VARIABLE = "AGENTOBS_WARN_BYTES"
WARN_BYTES = 5_000_000_000
"""The size of a home above which a warning is printed, unless `AGENTOBS_WARN_BYTES` sets another size. Our choice."""


def home_bytes(home: Home) -> int:
    """Return the disk usage of a home: segments, the published file, kept results, and damaged files."""
    total = 0
    for folder, _, names in os.walk(home.path):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size  # noqa: PTH118
            except OSError:
                continue
    return total


def size_text(size: float) -> str:
    """Return a size in a readable unit."""
    if size < 1000:
        return f"{size:.0f} bytes"
    for unit in ("KB", "MB"):
        size /= 1000
        if size < 1000:
            return f"{size:,.1f} {unit}"
    return f"{size / 1000:,.1f} GB"


def bytes_in(variable: str, default: int) -> int:
    """Return the number of bytes in an environment variable; the default if it is not a number of up to 18 digits."""
    setting = world.environ(variable) or ""
    return int(setting) if setting.isdecimal() and len(setting) <= 18 else default


def warning(home: Home) -> str | None:
    """Return a warning if a home is larger than the limit, else None."""
    limit = bytes_in(VARIABLE, WARN_BYTES)
    size = home_bytes(home)
    if size <= limit:
        return None
    return (
        f"{home.path} takes {size_text(size)}. agentobs prune --older-than 30d --content-only deletes the content "
        f"of old sessions, without --content-only all of their data; {VARIABLE} sets the limit "
        "for this message."
    )
