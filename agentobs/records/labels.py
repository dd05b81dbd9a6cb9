"""Labels: strings that are proven to contain no user content.

Facts only contain numbers, booleans, instants, IDs and labels. A name or a provider's ID is a label
if it matches a narrow pattern. Any other text is replaced by a keyed digest, and the text itself
belongs to the content.
"""

from __future__ import annotations

import functools
import hashlib
import re
from typing import cast

_PATTERN = re.compile(r"[A-Za-z0-9._:/@-]{1,128}\Z")
_REVIEWED_CHARACTERS = 200
"""Maximum length of a reviewed label: a sentence, not a text. Our choice."""


class Label(str):
    """A string that contains no user content.

    Made from a word that matches `[A-Za-z0-9._:/@-]{1,128}`, by `label` from any name, or by
    `Label.reviewed`.
    """

    __slots__ = ()

    def __new__(cls, text: str) -> Label:
        """Return `text` as a label.

        Raises:
            ValueError: it may contain content. Use `Label.reviewed` for a reviewed text.
        """
        if _PATTERN.match(text) is None:
            raise ValueError(
                f"a text of {len(text)} characters is not a label: [A-Za-z0-9._:/@-]{{1,128}}. For a "
                "constant text without content, use Label.reviewed(text, reason=...)"
            )
        return str.__new__(cls, text)

    @classmethod
    def reviewed(cls, text: str, *, reason: str) -> Label:
        """Return a reviewed text as a label: a constant of the program, never user input.

        `agentobs labels` lists every use, with its reason.

        Args:
            text: at most 200 characters, none of them a control character.
            reason: why it cannot contain content, for the next reviewer.

        Raises:
            ValueError: it is empty, too long, contains control characters, or the reason is
                missing.
        """
        if not 0 < len(text) <= _REVIEWED_CHARACTERS or not text.isprintable():
            raise ValueError(
                f"a reviewed label has 1 to {_REVIEWED_CHARACTERS} printable characters, "
                f"this text has {len(text)}"
            )
        if not reason.strip():
            raise ValueError("a reviewed label needs a reason why it cannot contain content")
        return str.__new__(cls, text)


@functools.lru_cache(maxsize=4096)
def word(text: str) -> Label:
    """Return a constant word as a label, like `Label(text)`, but cached.

    Raises:
        ValueError: it may contain content.
    """
    return Label(text)


def is_label(text: str) -> bool:
    """Return whether `text` is valid in facts unchanged: `[A-Za-z0-9._:/@-]{1,128}`."""
    return _PATTERN.match(text) is not None


def label(text: str, key: bytes) -> Label:
    """Return `text` as a label, or its keyed digest (`digest:` and 24 hex digits) if it is not one.

    `key` is the home's own key, at most 64 bytes. Equal names stay equal within one home, and
    without the key a short name cannot be guessed from its digest.
    """
    if is_label(text):
        return Label(text)
    hashed = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12, key=key)
    return Label(f"digest:{hashed.hexdigest()}")


def unchecked(text: str) -> Label:
    """Return a name unchanged, for a record that the recorder still has to check.

    It is not a label yet: the recorder converts it with `label` before it is written or handed on.
    """
    return cast(Label, text)
