"""Findings of secrets, and their replacements."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace

FAILED = b"[REDACTION FAILED]"
"""Replaces a text that could not be scanned."""
FAILED_KIND = "redaction_failed"
TAG_DIGITS = 8
"""Hex digits of a tag (32 bits): of 8,000 homes with 1,000 secrets each, one has two secrets with the same tag. Our
choice.
"""

_SPACING = re.compile(rb"\\+[nrt]|\s+")


@dataclass(frozen=True, slots=True)
class Finding:
    """A secret, or a part of it: its position, kind and replacement."""

    start: int
    end: int
    kind: str
    replacement: bytes | None = None
    """The replacement; None for the placeholder of the kind."""
    tag: str = ""
    """Distinguishes the secret from others; empty if the placeholder contains only the kind."""

    @property
    def replacement_bytes(self) -> bytes:
        """The bytes that replace the secret."""
        return placeholder(self.kind, self.tag) if self.replacement is None else self.replacement


def placeholder(kind: str, tag: str = "") -> bytes:
    """Return the placeholder of a secret."""
    return f"[redacted:{kind}:{tag}]".encode() if tag else f"[redacted:{kind}]".encode()


def tag_of(secret: bytes, key: bytes) -> str:
    """Return a few digits that identify a secret; without the key, the secret cannot be guessed from them.

    Line ends and other whitespace are ignored, escaped or not, so a private key has the same tag in a file and in JSON.
    If the key is empty, the tag is empty.
    """
    if not key:
        return ""
    normalized = _SPACING.sub(b"", secret)
    return hashlib.blake2b(
        normalized, key=key[:64], person=b"agentobs secret", digest_size=4
    ).hexdigest()


def apply(text: bytes, findings: list[Finding]) -> bytes:
    """Return `text` with each finding replaced; the same object if there are no findings."""
    if not findings:
        return text
    parts: list[bytes] = []
    last = 0
    for finding in findings:
        parts += (text[last : finding.start], finding.replacement_bytes)
        last = finding.end
    return b"".join((*parts, text[last:]))


def disjoint(found: list[Finding]) -> list[Finding]:
    """Return the findings in order; a finding that overlaps an earlier one is merged into it."""
    merged: list[Finding] = []
    for finding in sorted(found, key=lambda f: (f.start, -f.end)):
        if not merged or finding.start >= merged[-1].end:
            merged.append(finding)
        elif finding.end > merged[-1].end:
            merged[-1] = replace(merged[-1], end=finding.end)
    return merged
