"""Labels: strings that are proven to carry no user content.

Facts may hold numbers, booleans, instants, ids and labels, nothing else. A name or a provider's id is
a label when it matches a narrow pattern; any other text is replaced by a keyed digest, and the text
itself belongs to the content side.
"""

from __future__ import annotations

import functools
import hashlib
import re
from typing import cast

_PATTERN = re.compile(r"[A-Za-z0-9._:/@-]{1,128}\Z")
_REVIEWED_CHARACTERS = 200
"""How long a reviewed label may be: a sentence, never a text. Our choice."""


class Label(str):
    """A string that holds no user content.

    Made from a word that matches `[A-Za-z0-9._:/@-]{1,128}`, by `label` from any name, or by `Label.reviewed`.
    """

    __slots__ = ()

    def __new__(cls, text: str) -> Label:
        """Return `text` as a label.

        Raises:
            ValueError: it may hold content. The way for a text that somebody has looked at is `Label.reviewed`.
        """
        if _PATTERN.match(text) is None:
            raise ValueError(
                f"a text of {len(text)} characters is no label: [A-Za-z0-9._:/@-]{{1,128}}. A constant text that "
                "holds no content is one by Label.reviewed(text, reason=...)"
            )
        return str.__new__(cls, text)

    @classmethod
    def reviewed(cls, text: str, *, reason: str) -> Label:
        """Return a text that somebody has looked at as a label: a constant of the program, never what a user said.

        `agentobs labels` lists every use, with its reason.

        Args:
            text: at most 200 characters, none of them a control character.
            reason: why it can hold no content, for whoever reviews it next.

        Raises:
            ValueError: it is empty, too long, holds control characters, or no reason is given.
        """
        if not 0 < len(text) <= _REVIEWED_CHARACTERS or not text.isprintable():
            raise ValueError(
                f"a reviewed label has 1 to {_REVIEWED_CHARACTERS} printable characters, "
                f"this text has {len(text)}"
            )
        if not reason.strip():
            raise ValueError("a reviewed label needs a reason: why can it hold no content?")
        return str.__new__(cls, text)


@functools.lru_cache(maxsize=4096)
def word(text: str) -> Label:
    """Return a constant word as a label, as `Label(text)` does; it is looked at once.

    Raises:
        ValueError: it may hold content.
    """
    return Label(text)


def is_label(text: str) -> bool:
    """Return whether `text` may stand among facts as it is: `[A-Za-z0-9._:/@-]{1,128}`."""
    return _PATTERN.match(text) is not None


def label(text: str, key: bytes) -> Label:
    """Return `text` as a label, or its keyed digest (`digest:` and 24 hex digits) where it is none.

    `key` is the home's own key, at most 64 bytes, so that equal names stay equal within one home and
    nobody else can guess a short name from its digest.
    """
    if is_label(text):
        return Label(text)
    hashed = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12, key=key)
    return Label(f"digest:{hashed.hexdigest()}")


def unchecked(text: str) -> Label:
    """Return a name as it was given, for a record that the recorder has yet to see.

    It is no label: before it is written or handed on, the recorder makes one of it with `label`.
    """
    return cast(Label, text)
