"""Labels: strings that are proven to contain no user content.

Facts only contain numbers, booleans, instants, IDs and labels. `clear_text` decides which texts become labels. Any
other text is replaced by a keyed digest in the facts, and is recorded as content.
"""

from __future__ import annotations

import functools
import hashlib
import re
from typing import cast

_PATTERN = re.compile(r"[A-Za-z0-9._:/@-]{1,128}\Z")
REVIEWED_CHARACTERS = 200
"""Maximum length of a reviewed label, enough for one sentence. Our choice."""


class Label(str):
    """A string that contains no user content.

    `Label(text)` accepts a word that matches `[A-Za-z0-9._:/@-]{1,128}`, and `Label.reviewed` accepts a text that was
    reviewed.
    """

    __slots__ = ()

    def __new__(cls, text: str) -> Label:
        """Return `text` as a label.

        Raises:
            ValueError: the text may contain content. Use `Label.reviewed` for a text that was reviewed.
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

        `agentobs labels` lists every use with its reason.

        Args:
            text: at most 200 characters, without control characters.
            reason: why the text cannot contain content, for the next reviewer.

        Raises:
            ValueError: the text is empty, too long or contains control characters, or the reason is missing.
        """
        if not 0 < len(text) <= REVIEWED_CHARACTERS or not text.isprintable():
            raise ValueError(
                f"a reviewed label has 1 to {REVIEWED_CHARACTERS} printable characters, "
                f"this text has {len(text)}"
            )
        if not reason.strip():
            raise ValueError("a reviewed label needs a reason why it cannot contain content")
        return str.__new__(cls, text)

    @classmethod
    def accepted(cls, text: str) -> Label:
        """Return a text that `clear_text` accepts as a label, regardless of its characters."""
        return str.__new__(cls, text)


@functools.lru_cache(maxsize=4096)
def constant_label(text: str) -> Label:
    """Return a constant word as a label, like `Label(text)`, but cached.

    Raises:
        ValueError: the text may contain content.
    """
    return Label(text)


def is_label(text: str) -> bool:
    """Return whether facts can contain `text` unchanged, because it matches `[A-Za-z0-9._:/@-]{1,128}`."""
    return _PATTERN.match(text) is not None


DIGEST = "digest:"
"""The start of each keyed digest that replaces a text."""
_DIGEST = re.compile(rf"{DIGEST}[0-9a-f]{{24}}\Z")


def digest_label(text: str, key: bytes) -> Label:
    """Return the keyed digest of a text as a label: `digest:` and 24 hex digits.

    Args:
        text: any text.
        key: the key of the home, at most 64 bytes.
    """
    hashed = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12, key=key)
    return Label(f"{DIGEST}{hashed.hexdigest()}")


def is_digest(text: str) -> bool:
    """Return whether a text is a keyed digest, as facts and queries show it."""
    return _DIGEST.match(text) is not None


def prefixed(prefix: str, label: Label) -> Label:
    """Return a label after a constant prefix, such as the failure signature `declared:` and a reason.

    Every label is accepted, regardless of its characters and its length. A text that the recorder has not checked yet
    remains unchecked.
    """
    text = f"{prefix}{label}"
    return Label.accepted(text) if isinstance(label, Label) else unchecked(text)


def unchecked(text: str) -> Label:
    """Return a name unchanged, for a record that the recorder has not checked yet.

    The result may not be a valid label: the recorder checks it with `clear_text` before it writes or emits the record.
    """
    return cast(Label, text)
