"""Content as text for a page: limited in length, with invisible and bidirectional characters made visible.

Pure functions. The caller decides whether content may be shown.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentobs.provider import registry
from agentobs.records.canonical_json import Json
from agentobs.records.exchanges import Answer, Question

SHOWN = 20_000
"""The maximum number of characters of a text that a page shows; the full text can be downloaded. Our choice: about 5
pages of a book.
"""
TOO_DEEP = "(nested too deeply to be shown)"
"""The text in place of a value that is nested too deeply to be written as JSON. The raw body contains the value."""

_HIDDEN = re.compile(
    # Control characters except tab and newline, bidirectional controls, zero-width characters, unusual separators, lone
    # surrogates, which UTF-8 cannot encode, and tag characters, which are invisible to people and read by models.
    # Joiners (U+200C, U+200D) belong to scripts and emoji.
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)


@dataclass(frozen=True, slots=True)
class Text:
    """A text in a page: the beginning of the text, and the location of the full text."""

    shown: str
    """The first SHOWN characters, with invisible characters as escapes."""
    characters: int
    """The total number of characters."""
    side: str = ""
    """`request` or `response`: which of them contains the text; empty if the full text cannot be downloaded."""
    keys: str = ""
    """The path of the text in it: a JSON array of keys and indexes."""

    @property
    def is_cut(self) -> bool:
        """Whether the text has more characters than are shown."""
        return self.characters > SHOWN


def body_of(question: Question) -> Json:
    """Return the JSON of a request; None if it is not JSON."""
    try:
        return json.loads(question.body.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError):
        return None


def message_of(answer: Answer, path: str = "") -> dict[str, Any]:
    """Return the message in a response; empty if the response cannot be parsed."""
    return dict(registry.message_of(path, answer).raw)


def visible(text: str) -> str:
    """Return a text with invisible and bidirectional characters as escapes; line breaks are kept."""
    return _HIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text.replace("\r\n", "\n"))


def text_of(value: Json) -> str:
    """Return a value as text: a string as it is, anything else as indented JSON."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False, indent=2, default=str)
    except RecursionError:  # JSON can be read at a nesting at which it cannot be written
        return TOO_DEEP


def shown(value: Json, side: str = "", keys: Sequence[str | int] = ()) -> Text:
    """Return a value as text for a page."""
    text = text_of(value)
    return Text(visible(text[:SHOWN]), len(text), side, json.dumps(list(keys)) if side else "")


def found_at(value: Json, keys: str) -> Json:
    """Return the value at a path that was passed to `shown`.

    Raises:
        LookupError: the path does not exist in the value.
    """
    try:
        for key in json.loads(keys):
            value = value[key]
    except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
        raise LookupError(keys) from error
    return value
