"""Stored lines: which content lines of a record are written, by the content mode of its session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentobs.determinism.jobs import close_session
from agentobs.recording.vault.content_lines import jobs_content

ContentLine = tuple[str, dict[str, Any]]
"""The kind of a content line, and its payload."""


def content_id(line: Mapping[str, Any], mode: str) -> str | None:
    """Return the content ID of a line; None if the mode is `off`."""
    return None if mode == "off" else str(line["content_id"])


def stored(kind: str, line: dict[str, Any], mode: str) -> tuple[ContentLine, ...]:
    """Return a line with its kind; nothing if the mode is `off`."""
    return () if mode == "off" else ((kind, line),)


def ended_jobs(session_id: str, mode: str) -> tuple[ContentLine, ...]:
    """Return the line about the jobs of a session that has ended, if there are any."""
    ended = close_session(session_id)
    return stored("jobs", jobs_content(session_id, ended), mode) if ended else ()


__all__ = ["ContentLine", "content_id", "ended_jobs", "stored"]
