"""Texts of a page: what was said, bounded, with every character that hides or turns others in sight.

Pure functions over what was read; whoever reads it decides whether it may be shown at all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentobs.provider.messages import assemble
from agentobs.records.canonical_json import Json
from agentobs.records.exchanges import Answer, Question

SHOWN = 20_000
"""How many characters of a text stand in a page; all of it can be downloaded. Our choice: some 5 pages of a book."""

_HIDDEN = re.compile(
    # Controls but tab and newline, what turns text around or takes no room, separators that look like none,
    # halves of characters that no UTF-8 can hold, and tags, which nobody sees and a model reads. What joins
    # letters (U+200C, U+200D) belongs to scripts and emoji.
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)


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
