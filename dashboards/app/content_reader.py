"""Content, read from the vault on demand, one part at a time and without a cache.

A page contains no content until the user presses a button. The button sends a POST, which the guard only accepts from
pages of the dashboard. A link in an email, a prefetch, or an image on another site can only send a GET, and the
response to a GET never contains content. It may state whether texts are equal.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from threading import BoundedSemaphore
from typing import Any, TypeVar

from agentobs.errors import AgentobsError
from agentobs.recording.journal.home import Home
from agentobs.recording.vault.vault import Vault, text_bytes
from agentobs.records.exchanges import Answer, Question
from agentobs.store.session_texts import prompt_of, prompt_title

Row = Mapping[str, Any]
T = TypeVar("T")
MOST_OPEN = 2
"""The maximum number of open segments. A segment that is still being written is read into memory, up to 64 MB (see
`recording.segment_writer`); the next read nearly always needs the same segment."""
MOST_COMPARED = 100
"""The maximum number of errors whose texts are compared when a page is made. Our choice: some milliseconds."""
MOST_COMPARED_BYTES = 1_000_000
"""The maximum size of these texts in total. Our choice: some milliseconds. [bytes]"""
CONTENT_SLOTS = BoundedSemaphore(2)
"""Limits the threads that read and render content: bodies are large, and each thread keeps a few bodies in memory."""


@dataclass(frozen=True, slots=True)
class Withheld:
    """The reason why content cannot be shown."""

    found: str
    """The reason, in one sentence without a final period."""
    todo: str
    """The suggested fix; empty if there is none."""


class Content:
    """The content of sessions, for the duration of one response of the dashboard."""

    def __init__(self, home: Home) -> None:
        """Store the home; segments are opened on demand."""
        self._home = home
        self._vaults: dict[str, Vault] = {}

    def question(self, attempt: Row) -> Question | Withheld:
        """Return the request of an attempt as it was sent, except for redacted secrets."""
        return self._read(attempt, "request_content", lambda vault, at: vault.question(at))

    def answer(self, attempt: Row) -> Answer | Withheld:
        """Return the response of an attempt as it arrived, except for redacted secrets."""
        return self._read(attempt, "response_content", lambda vault, at: vault.answer(at))

    def prompt(self, attempt: Row) -> str | Withheld:
        """Return the last prompt in the request of an attempt, without the parts that a client added; "" if it has
        none.
        """
        return self._read(
            attempt, "request_content", lambda vault, at: prompt_title(prompt_of(vault, at))
        )

    def tool_execution(self, result: Row) -> dict[str, Any] | Withheld:
        """Return `input` and `result` of a tool call that was executed, given the row of its result."""
        return self._read(
            result, "content", lambda vault, at: dict(json.loads(text_bytes(vault.value(at))))
        )

    def secrets(self, attempt: Row, column: str) -> dict[str, int]:
        """Return the numbers of redacted secrets by kind, in the new part of a request or in a response."""
        found = self._read(
            attempt, column, lambda vault, at: list(vault.value(at).get("redactions", ()))
        )
        return {} if isinstance(found, Withheld) else dict(Counter(str(note[0]) for note in found))

    def _read(self, row: Row, column: str, read: Callable[[Vault, str], T]) -> T | Withheld:
        content_id = row[column]
        if content_id is None:
            return Withheld(
                "the session was recorded without content",
                'Record with content="vault" to keep content',
            )
        try:
            return read(self._vault(row), content_id)
        except AgentobsError as error:
            return Withheld(error.found, error.todo)
        except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
            return Withheld(
                f"the content cannot be read back ({type(error).__name__})",
                "Run agentobs verify to find the damage",
            )

    def _vault(self, row: Row) -> Vault:
        segment_id = str(row["segment_id"])
        if segment_id not in self._vaults:
            while len(self._vaults) >= MOST_OPEN:
                self._vaults.pop(next(iter(self._vaults)))
            self._vaults[segment_id] = Vault(self._home, segment_id, str(row["session_id"]))
        return self._vaults[segment_id]


def have_equal_errors(
    home: Home, rows: Sequence[Row], calls: Collection[tuple[str, int, str]]
) -> bool:
    """Return whether the recorded results of calls that failed or were denied are known to be equal. The texts
    themselves are not returned.

    Args:
        home: the home.
        rows: the rows of `internal/recorded_errors` of the session.
        calls: of each call that the client ran, the attempt, the place in its response, and the ID.
    """
    known = {(row["attempt_id"], row["ordinal"], row["tool_use_id"]): row for row in rows}
    found = [known[each] for each in calls if each in known]
    sizes = {row["result_bytes"] for row in found}
    if len(found) != len(calls) or len(sizes) != 1 or len(found) > MOST_COMPARED:
        return False
    [size] = sizes
    if size is None or size * len(found) > MOST_COMPARED_BYTES:
        return False
    content = Content(home)
    first = None
    for row in found:
        executed = content.tool_execution(row)
        if isinstance(executed, Withheld) or "result" not in executed:
            return False
        result = json.dumps(executed["result"], sort_keys=True)
        if first not in (None, result):
            return False
        first = result
    return True
