"""What was said, read from the vault when somebody asks for it: one part at a time, and kept nowhere.

A page holds nothing of it before somebody presses a button. The button sends a POST, which the guard lets through from
our own pages alone: a link in a mail, a page that is loaded ahead or an image of another site can only GET, and a GET
never holds what was said.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import BoundedSemaphore
from typing import Any, TypeVar

from agentobs.errors import AgentobsError
from agentobs.recording.home import Home
from agentobs.recording.vault import Vault, text_bytes
from agentobs.records.canonical import Json
from agentobs.records.exchanges import Answer, Question
from agentobs.records.messages import assemble

Row = Mapping[str, Any]
T = TypeVar("T")
SHOWN = 20_000
"""How many characters of a text stand in a page; all of it can be downloaded. Our choice: some 5 pages of a book."""
MOST_OPEN = 2
"""How many segments are held open: one that is still written to is read into memory, up to 64 MB (see
`recording.writer`); what is asked for next nearly always lies in the same."""
AT_ONCE = BoundedSemaphore(2)
"""Held while content is read and set in a page: bodies are large, and each reader has some of them in memory."""

_HIDDEN = re.compile(
    # Controls but tab and newline, what turns text around or takes no room, separators that look like none,
    # halves of characters that no UTF-8 can hold, and tags, which nobody sees and a model reads. What joins
    # letters (U+200C, U+200D) belongs to scripts and emoji.
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)


@dataclass(frozen=True, slots=True)
class Withheld:
    """Content that cannot be shown, and why."""

    found: str
    """Why not, in one sentence without a final stop."""
    todo: str
    """What can be done about it; empty where nothing can."""


@dataclass(frozen=True, slots=True)
class Text:
    """A text of a page: its beginning, and where all of it is."""

    shown: str
    """At most SHOWN characters of it, those that nobody sees as escapes."""
    characters: int
    """How many it has in all."""
    side: str = ""
    """`request` or `answer`: where it stands."""
    keys: str = ""
    """Its place there, as JSON: the keys and indexes that lead to it."""

    @property
    def is_cut(self) -> bool:
        """Whether there is more of it than is shown."""
        return self.characters > SHOWN


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


def body_of(question: Question) -> Json:
    """Return the JSON of a request; None where it is none."""
    try:
        return json.loads(question.body.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError):
        return None


def message_of(answer: Answer) -> dict[str, Any]:
    """Return the message that an answer adds up to; empty where nothing could be read."""
    return assemble(answer.headers, answer.body)


def visible(text: str) -> str:
    """Return a text with characters that hide or turn others as escapes; lines stay lines."""
    return _HIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text.replace("\r\n", "\n"))


def text_of(value: Json) -> str:
    """Return a value as text: a string as it is, all else as indented JSON."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, indent=2, default=str)


def shown(value: Json, side: str = "", keys: Sequence[str | int] = ()) -> Text:
    """Return a value as a text of a page."""
    text = text_of(value)
    return Text(visible(text[:SHOWN]), len(text), side, json.dumps(list(keys)) if side else "")


def found_at(value: Json, keys: str) -> Json:
    """Return what stands at a place that `shown` was given.

    Raises:
        LookupError: nothing does.
    """
    try:
        for key in json.loads(keys):
            value = value[key]
    except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
        raise LookupError(keys) from error
    return value
