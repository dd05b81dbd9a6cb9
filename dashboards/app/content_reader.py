"""What was said, read from the vault when somebody asks for it: one part at a time, and kept nowhere.

A page holds nothing of it before somebody presses a button. The button sends a POST, which the guard lets through from
our own pages alone: a link in a mail, a page that is loaded ahead or an image of another site can only GET, and a GET
never holds what was said.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import BoundedSemaphore
from typing import Any, TypeVar

from agentobs.errors import AgentobsError
from agentobs.recording.journal.home import Home
from agentobs.recording.vault.vault import Vault, text_bytes
from agentobs.records.exchanges import Answer, Question

Row = Mapping[str, Any]
T = TypeVar("T")
MOST_OPEN = 2
"""How many segments are held open: one that is still written to is read into memory, up to 64 MB (see
`recording.writer`); what is asked for next nearly always lies in the same."""
AT_ONCE = BoundedSemaphore(2)
"""Held while content is read and set in a page: bodies are large, and each reader has some of them in memory."""


@dataclass(frozen=True, slots=True)
class Withheld:
    """Content that cannot be shown, and why."""

    found: str
    """Why not, in one sentence without a final stop."""
    todo: str
    """What can be done about it; empty where nothing can."""


class Content:
    """The content of sessions, for as long as one answer of the dashboard is made."""

    def __init__(self, home: Home) -> None:
        """Open nothing yet."""
        self._home = home
        self._vaults: dict[str, Vault] = {}

    def question(self, attempt: Row) -> Question | Withheld:
        """Return the request of an attempt as it was sent, but for secrets."""
        return self._read(attempt, "request_content", lambda vault, at: vault.question(at))

    def answer(self, attempt: Row) -> Answer | Withheld:
        """Return the response of an attempt as it arrived, but for secrets."""
        return self._read(attempt, "response_content", lambda vault, at: vault.answer(at))

    def ran(self, result: Row) -> dict[str, Any] | Withheld:
        """Return `input` and `result` of a call that ran, from the row of its result."""
        return self._read(
            result, "content", lambda vault, at: dict(json.loads(text_bytes(vault.value(at))))
        )

    def secrets(self, attempt: Row, column: str) -> dict[str, int]:
        """Return how many secrets of which kind were taken out of what is new in a request, or out of an answer."""
        found = self._read(
            attempt, column, lambda vault, at: list(vault.value(at).get("redactions", ()))
        )
        return {} if isinstance(found, Withheld) else dict(Counter(str(note[0]) for note in found))

    def _read(self, row: Row, column: str, read: Callable[[Vault, str], T]) -> T | Withheld:
        content_id = row[column]
        if content_id is None:
            return Withheld(
                "this was recorded without its content: what was said was never written",
                'Record with content="vault" to have it',
            )
        try:
            return read(self._vault(row), content_id)
        except AgentobsError as error:
            return Withheld(error.found, error.todo)
        except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
            return Withheld(
                f"the content does not read back ({type(error).__name__})",
                "agentobs verify tells what is damaged",
            )

    def _vault(self, row: Row) -> Vault:
        segment_id = str(row["segment_id"])
        if segment_id not in self._vaults:
            while len(self._vaults) >= MOST_OPEN:
                self._vaults.pop(next(iter(self._vaults)))
            self._vaults[segment_id] = Vault(self._home, segment_id, str(row["session_id"]))
        return self._vaults[segment_id]
