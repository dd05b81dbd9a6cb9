"""Taking secrets out of bytes before they are written, leaving a note of what and where.

Two stages: find literal anchors, then match an anchored and bounded pattern there. Every quantifier is
bounded, so that hostile text costs no more than plain text. A placeholder names only the kind, so that
a recording replays whoever holds the key: live questions pass through the same function first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

CONTEXT = 4096
"""No secret that we look for is longer: a scan that starts so many bytes earlier misses nothing."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A secret: where it stands and of which kind it is."""

    start: int
    end: int
    kind: str


_WORD_END = rb"(?![A-Za-z0-9_-])"
_KINDS: tuple[tuple[str, bytes, bytes], ...] = (
    # kind, anchor, pattern from the anchor on. Formats: each provider's own documentation of its keys.
    ("anthropic_key", b"sk-ant-", rb"sk-ant-[A-Za-z0-9_-]{16,256}"),
    ("openai_key", b"sk-proj-", rb"sk-proj-[A-Za-z0-9_-]{20,256}"),
    ("openai_key", b"sk-", rb"(?<![A-Za-z0-9_-])sk-[A-Za-z0-9]{32,64}" + _WORD_END),
    ("aws_key_id", b"AKIA", rb"(?<![A-Za-z0-9])AKIA[A-Z2-7]{16}" + _WORD_END),
    ("github_token", b"ghp_", rb"ghp_[A-Za-z0-9]{36,255}"),
    ("github_token", b"gho_", rb"gho_[A-Za-z0-9]{36,255}"),
    ("github_token", b"ghs_", rb"ghs_[A-Za-z0-9]{36,255}"),
    ("github_token", b"github_pat_", rb"github_pat_[A-Za-z0-9_]{22,255}"),
    ("slack_token", b"xoxb-", rb"xoxb-[A-Za-z0-9-]{20,128}"),
    ("slack_token", b"xoxp-", rb"xoxp-[A-Za-z0-9-]{20,128}"),
    ("google_key", b"AIza", rb"(?<![A-Za-z0-9_-])AIza[A-Za-z0-9_-]{35}" + _WORD_END),
    ("huggingface_token", b"hf_", rb"(?<![A-Za-z0-9_-])hf_[A-Za-z0-9]{34}" + _WORD_END),
    ("stripe_key", b"sk_live_", rb"sk_live_[A-Za-z0-9]{20,128}"),
    ("bearer_token", b"Bearer ", rb"Bearer [A-Za-z0-9._~+/-]{20,2048}=?=?"),
    (
        "private_key",
        b"-----BEGIN ",
        rb"-----BEGIN [A-Z ]{0,32}PRIVATE KEY-----[A-Za-z0-9+/=\\nr\s:,.-]{32,3900}?"
        rb"-----END [A-Z ]{0,32}PRIVATE KEY-----",
    ),
)
_PATTERNS = tuple((kind, anchor, re.compile(pattern)) for kind, anchor, pattern in _KINDS)


def find(
    text: bytes, *, start: int = 0, end: int | None = None, known: Iterable[bytes] = ()
) -> list[Finding]:
    """Return the secrets between `start` and `end`, in order and without overlap.

    `known` holds literal secrets, such as the key that the request itself carried.
    """
    stop = len(text) if end is None else end
    found = [
        Finding(at, at + len(secret), "credential")
        for secret in known
        if len(secret) >= 8
        for at in _occurrences(text, secret, start, stop)
    ]
    for kind, anchor, pattern in _PATTERNS:
        for at in _occurrences(text, anchor, start, stop):
            if match := pattern.match(text, at):
                found.append(Finding(at, match.end(), kind))
    return disjoint(found)


def apply(text: bytes, findings: list[Finding]) -> bytes:
    """Return `text` with each finding replaced by `[redacted:KIND]`; the same object where there is none."""
    if not findings:
        return text
    parts: list[bytes] = []
    last = 0
    for finding in findings:
        parts += (text[last : finding.start], placeholder(finding.kind))
        last = finding.end
    return b"".join((*parts, text[last:]))


def redact(text: bytes, known: Iterable[bytes] = ()) -> bytes:
    """Return `text` without the secrets that `find` sees in it."""
    return apply(text, find(text, known=known))


def placeholder(kind: str) -> bytes:
    """Return what stands in place of a secret."""
    return b"[redacted:" + kind.encode() + b"]"


def _occurrences(text: bytes, needle: bytes, start: int, stop: int) -> Iterable[int]:
    at = text.find(needle, start, stop)
    while at != -1:
        yield at
        at = text.find(needle, at + 1, stop)


def disjoint(found: list[Finding]) -> list[Finding]:
    """Return findings in order, those that overlap merged into the first of them."""
    kept: list[Finding] = []
    for finding in sorted(found, key=lambda f: (f.start, -f.end)):
        if not kept or finding.start >= kept[-1].end:
            kept.append(finding)
        elif finding.end > kept[-1].end:
            kept[-1] = Finding(kept[-1].start, finding.end, kept[-1].kind)
    return kept
