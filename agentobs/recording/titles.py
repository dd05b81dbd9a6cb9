"""Titles of sessions: texts that local commands and pages show to distinguish sessions."""

from __future__ import annotations

from typing import Literal

from agentobs import world
from agentobs.errors import UsageError
from agentobs.records.facts import SessionTitle
from agentobs.records.labels import unchecked

TITLE_MAX = 200
"""The maximum length of a title in characters; longer titles are shortened. Our choice: a line of a wide terminal."""


def title_fact(session_id: str, text: str, source: Literal["program", "command"]) -> SessionTitle:
    """Return the fact that a session got a title now.

    Raises:
        UsageError: the text is empty.
    """
    return SessionTitle(session_id, world.now(), unchecked(title_text(text)), source)


def title_text(text: str) -> str:
    """Return a title as it is recorded: one line of at most 200 characters.

    Raises:
        UsageError: the text is empty.
    """
    line = " ".join(text.split())
    if not line:
        raise UsageError("the title is empty", where="title", todo="Pass a text")
    return line if len(line) <= TITLE_MAX else line[: TITLE_MAX - 1] + "\u2026"
