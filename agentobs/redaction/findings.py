"""Findings of secrets, and their replacements."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace

FAILED = b"[REDACTION FAILED]"
"""Replaces a text that could not be scanned."""
FAILED_KIND = "redaction_failed"
TAG_DIGITS = 8
"""Hex digits of a tag: 32 bits, so that among 1,000 secrets two share a tag in one of 8,000 homes. Our choice."""

_SPACING = re.compile(rb"\\+[nrt]|\s+")


@dataclass(frozen=True, slots=True)
class Finding:
    """A secret, or a part of one: its position, kind and replacement."""

    start: int
    end: int
    kind: str
    replacement: bytes | None = None
    """The replacement; None for the placeholder of its kind."""
    tag: str = ""
    """Distinguishes it from other secrets; empty if not wanted."""

    @property
    def written(self) -> bytes:
        """The bytes written in its place."""
        return placeholder(self.kind, self.tag) if self.replacement is None else self.replacement


def placeholder(kind: str, tag: str = "") -> bytes:
    """Return the placeholder of a secret."""
    return f"[redacted:{kind}:{tag}]".encode() if tag else f"[redacted:{kind}]".encode()


def tag_of(secret: bytes, key: bytes) -> str:
    """Return a few digits that identify a secret, which cannot be guessed from them without the key.

    All line ends are equivalent, escaped or not, so that a private key has the same tag in a file and in JSON. Without
    a key there is no tag.
    """
    if not key:
        return ""
    same = _SPACING.sub(b"", secret)
    return hashlib.blake2b(same, key=key[:64], person=b"agentobs secret", digest_size=4).hexdigest()


def apply(text: bytes, findings: list[Finding]) -> bytes:
    """Return `text` with each finding replaced; the same object if there are none."""
    if not findings:
        return text
    parts: list[bytes] = []
    last = 0
    for finding in findings:
        parts += (text[last : finding.start], finding.written)
        last = finding.end
    return b"".join((*parts, text[last:]))


def disjoint(found: list[Finding]) -> list[Finding]:
    """Return findings in order, overlapping ones merged into the first."""
    merged: list[Finding] = []
    for finding in sorted(found, key=lambda f: (f.start, -f.end)):
        if not merged or finding.start >= merged[-1].end:
            merged.append(finding)
        elif finding.end > merged[-1].end:
            merged[-1] = replace(merged[-1], end=finding.end)
    return merged
