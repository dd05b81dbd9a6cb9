"""Labels: strings that are proven to carry no user content.

Facts may hold numbers, booleans, instants, ids and labels, nothing else. A name or a provider's id is
a label when it matches a narrow pattern; any other text is replaced by a keyed digest, and the text
itself belongs to the content side.
"""

from __future__ import annotations

import hashlib
import re
from typing import NewType

Label = NewType("Label", str)
"""A string that holds no user content."""

_PATTERN = re.compile(r"[A-Za-z0-9._:/@-]{1,128}\Z")


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
