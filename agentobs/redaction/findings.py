"""What was found, and what takes its place."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace

FAILED = b"[REDACTION FAILED]"
"""What stands in place of a text that could not be looked through."""
FAILED_KIND = "redaction_failed"
TAG_DIGITS = 8
"""Hex digits of a tag: 32 bits, so that among 1,000 secrets of a home two share one once in 8,000 homes. Our choice."""

_SPACING = re.compile(rb"\\+[nrt]|\s+")


@dataclass(frozen=True, slots=True)
class Finding:
    """A secret, or a piece of one: where it stands, of which kind it is, and what takes its place."""

    start: int
    end: int
    kind: str
    replacement: bytes | None = None
    """What is written there; None: the placeholder of its kind."""
    tag: str = ""
    """What tells it from other secrets; empty where nothing shall."""

    @property
    def written(self) -> bytes:
        """The bytes that stand in its place."""
        return placeholder(self.kind, self.tag) if self.replacement is None else self.replacement


def placeholder(kind: str, tag: str = "") -> bytes:
    """Return what stands in place of a secret."""
    return f"[redacted:{kind}:{tag}]".encode() if tag else f"[redacted:{kind}]".encode()


def tag_of(secret: bytes, key: bytes) -> str:
    """Return the same few digits for the same secret, which nobody can guess back without the key.

    Line ends count as one, escaped or not, so that a private key is the same in a file and in JSON. Without a key
    there is no tag.
    """
    if not key:
        return ""
    same = _SPACING.sub(b"", secret)
    return hashlib.blake2b(same, key=key[:64], person=b"agentobs secret", digest_size=4).hexdigest()


def apply(text: bytes, findings: list[Finding]) -> bytes:
    """Return `text` with each finding replaced; the same object where there is none."""
    if not findings:
        return text
    parts: list[bytes] = []
    last = 0
    for finding in findings:
        parts += (text[last : finding.start], finding.written)
        last = finding.end
    return b"".join((*parts, text[last:]))


def disjoint(found: list[Finding]) -> list[Finding]:
    """Return findings in order, those that overlap merged into the first of them."""
    kept: list[Finding] = []
    for finding in sorted(found, key=lambda f: (f.start, -f.end)):
        if not kept or finding.start >= kept[-1].end:
            kept.append(finding)
        elif finding.end > kept[-1].end:
            kept[-1] = replace(kept[-1], end=finding.end)
    return kept
